"""How far judges agree with human experts: the base judge, ours and the peer, on real labels."""
