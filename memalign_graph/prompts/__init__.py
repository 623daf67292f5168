"""What models are asked: pure functions, text in, messages out; answers in, checked values out."""
