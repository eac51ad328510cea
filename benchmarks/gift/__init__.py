"""What gift buys on real gradients: capture them, then measure error against bytes."""
