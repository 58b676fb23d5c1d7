"""What the ops of Kimi Delta Attention share: geometry, gate, recurrence, convolution and output norm, in torch."""
