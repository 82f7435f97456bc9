package jobs

import "github.com/psidecar/psidecar/proxy/zmtp"

// appendMessage appends frames as a ZMTP message.
func appendMessage(dst []byte, frames [][]byte) []byte {
	for i, f := range frames {
		dst = zmtp.AppendHeader(dst, zmtp.FrameHeader(len(f), i < len(frames)-1))
		dst = append(dst, f...)
	}
	return dst
}

// cutMessage is the inverse of appendMessage, for a complete message. The frames refer to b's
// memory.
func cutMessage(b []byte) (frames [][]byte, err error) {
	for len(b) > 0 {
		h, n, err := zmtp.CutHeader(b)
		if err != nil {
			return nil, err
		}
		frames = append(frames, b[n:n+int(h.Size):n+int(h.Size)])
		b = b[n+int(h.Size):]
	}
	return frames, nil
}
