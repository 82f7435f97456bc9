package relay

import "github.com/psidecar/psidecar/internal/wire/zmtp"

// The proxies' own command, and the flags in the first byte of its data.
const (
	commandName = "PS"
	flagFollow  = 1 // frames follow
	flagRaw     = 2 // from here on the stream is not ZMTP's: it is not PS-lite's
	flagPass    = 4 // nothing follows: the stream goes on over another link
)

// commandExtra is the size of the command's body before the head: name length, name and flags.
const commandExtra = 1 + len(commandName) + 1

// isOurs reports whether a command's body is that of the proxies' own. The first commandExtra bytes
// suffice.
func isOurs(body []byte) bool {
	return len(body) > len(commandName) && int(body[0]) == len(commandName) && string(body[1:1+len(commandName)]) == commandName
}

// putCommandHeader writes the header of the proxies' command with a head of size bytes to the end
// of b, and returns its length.
func putCommandHeader(b []byte, flags byte, size int) int {
	h := zmtp.FrameHeader(commandExtra+size, false)
	h.Flags |= zmtp.Command
	n := h.Len() + commandExtra
	at := b[len(b)-n:]
	at = zmtp.AppendHeader(at[:0], h)
	at = append(at, byte(len(commandName)))
	at = append(at, commandName...)
	_ = append(at, flags)
	return n
}

// appendCommand appends the proxies' command to dst.
func appendCommand(dst []byte, flags byte, head []byte) []byte {
	return zmtp.AppendCommand(dst, commandName, append([]byte{flags}, head...))
}
