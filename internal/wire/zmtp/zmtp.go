// Package zmtp speaks ZMTP 3.0 and 3.1, the protocol of ZeroMQ sockets over TCP, with
// the NULL mechanism.
//
// At its heart is [Decoder], which does no input or output: the caller passes the bytes
// of one direction of a connection in whatever pieces they come, and gets the greeting,
// frame headers and pieces of frame bodies, which are slices of what was passed. A body
// can be skipped without being there ([Decoder.Discard]). The Append functions write
// the same things back, byte for byte. [Conn] puts both on a net.Conn, with the
// handshake.
//
// The capture decoder, the agent, the proxy and psjob call it. It knows nothing of
// PS-lite and imports nothing of this module.
//
// Source: https://rfc.zeromq.org/spec/23/ (3.0) and /spec/37/ (3.1).
package zmtp

import (
	"encoding/binary"
	"fmt"
)

// Flags is the first byte of a frame.
type Flags byte

// The flag bits; the others are reserved and must be zero.
const (
	More    Flags = 1 << iota // further frames of this message follow
	Long                      // the size takes 8 bytes instead of 1
	Command                   // the frame is a command, not part of a message
)

// MaxHeader is the size of the longest frame header in bytes.
const MaxHeader = 9

// Header describes one frame.
type Header struct {
	Flags Flags
	Size  uint64 // bytes in the body, below 2^63
}

// More reports whether another frame of the same message follows.
func (h Header) More() bool { return h.Flags&More != 0 }

// Command reports whether the frame is a command.
func (h Header) Command() bool { return h.Flags&Command != 0 }

// Len returns how many bytes the header itself takes: 2 or 9.
func (h Header) Len() int {
	if h.Flags&Long != 0 {
		return MaxHeader
	}
	return 2
}

// FrameHeader returns the header that ZeroMQ would write for a data frame of
// size bytes: the long form for more than 255.
func FrameHeader(size int, more bool) Header {
	h := Header{Size: uint64(size)}
	if more {
		h.Flags |= More
	}
	if size > 255 {
		h.Flags |= Long
	}
	return h
}

// AppendHeader appends the header's bytes to dst. The Long flag alone decides on the
// form, so that a header that was read comes out as it was, even a long one of a small
// frame. Without that flag only the lowest byte of the size is written: headers made by
// hand should come from [FrameHeader].
func AppendHeader(dst []byte, h Header) []byte {
	dst = append(dst, byte(h.Flags))
	if h.Flags&Long == 0 {
		return append(dst, byte(h.Size))
	}
	return binary.BigEndian.AppendUint64(dst, h.Size)
}

// A SyntaxError says which byte of a stream was not ZMTP.
type SyntaxError struct {
	Offset uint64 // of the offending element, from the stream's start
	Reason string
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("zmtp: at byte %d: %s", e.Offset, e.Reason)
}

// CutHeader reads the header at the start of b, without the state of a [Decoder], and
// returns how many bytes it takes; 0 if b ends before it does. It refuses what a
// Decoder refuses.
func CutHeader(b []byte) (h Header, n int, err error) {
	if len(b) == 0 {
		return h, 0, nil
	}
	h.Flags = Flags(b[0])
	switch {
	case h.Flags&^(More|Long|Command) != 0:
		return h, 0, &SyntaxError{0, fmt.Sprintf("frame flags %#02x with reserved bits set", b[0])}
	case h.Command() && h.More():
		return h, 0, &SyntaxError{0, fmt.Sprintf("frame flags %#02x: a command cannot be part of a message", b[0])}
	case len(b) < h.Len():
		return h, 0, nil
	case h.Flags&Long == 0:
		h.Size = uint64(b[1])
	default:
		h.Size = binary.BigEndian.Uint64(b[1:])
	}
	if h.Size >= 1<<63 {
		return h, 0, &SyntaxError{0, fmt.Sprintf("frame of %d bytes: ZMTP allows less than 2^63", h.Size)}
	}
	return h, h.Len(), nil
}
