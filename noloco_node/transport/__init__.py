"""gRPC between peers, inside libp2p streams (DESIGN 6). Owns every byte that travels; knows no training."""
