"""What the QSA ops share and no op itself: model profile, geometry, rotary embedding, RMS norm."""
