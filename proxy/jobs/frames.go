package jobs

import (
	"fmt"

	"github.com/psidecar/psidecar/internal/wire/zmtp"
)

// appendMessage appends frames as a ZMTP message.
func appendMessage(dst []byte, frames [][]byte) []byte {
	for i, f := range frames {
		dst = zmtp.AppendHeader(dst, zmtp.FrameHeader(len(f), i < len(frames)-1))
		dst = append(dst, f...)
	}
	return dst
}

// cutMessage is the inverse of appendMessage. The frames refer to b's memory.
func cutMessage(b []byte) (frames [][]byte, err error) {
	for len(b) > 0 {
		h, n, err := zmtp.CutHeader(b)
		if err != nil {
			return nil, err
		}
		if n == 0 {
			return nil, fmt.Errorf("a frame's header is cut short at %d bytes", len(b))
		}
		if h.Size > uint64(len(b)-n) {
			return nil, fmt.Errorf("a frame of %d bytes, of which there are %d", h.Size, len(b)-n)
		}
		frames = append(frames, b[n:n+int(h.Size):n+int(h.Size)])
		b = b[n+int(h.Size):]
	}
	return frames, nil
}
