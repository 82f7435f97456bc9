package zmtp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// Names of the commands that a connection with the NULL mechanism carries.
const (
	CommandReady = "READY"
	CommandError = "ERROR"
	CommandPing  = "PING"
	CommandPong  = "PONG"
)

// MaxCommand is how many bytes a command's body may have on its way through proxies,
// which hold it whole, in a buffer that every connection has. ZMTP has no bound;
// libzmq's commands stay below 1 KiB.
const MaxCommand = 32 << 10

// MaxPingContext is the longest context that a PING may carry, in bytes.
const MaxPingContext = 16

var errShortCommand = errors.New("zmtp: the command ends too early")

// ParseCommand splits a command frame's body into its name and its data, both slices of
// body.
func ParseCommand(body []byte) (name, data []byte, err error) {
	if len(body) == 0 || len(body) < 1+int(body[0]) {
		return nil, nil, errShortCommand
	}
	if body[0] == 0 {
		return nil, nil, errors.New("zmtp: a command without a name")
	}
	n := 1 + int(body[0])
	return body[1:n], body[n:], nil
}

// AppendCommand appends a whole command frame to dst. name has at most 255 bytes.
func AppendCommand(dst []byte, name string, data []byte) []byte {
	size := 1 + len(name) + len(data)
	h := FrameHeader(size, false)
	h.Flags |= Command
	dst = AppendHeader(dst, h)
	dst = append(dst, byte(len(name)))
	dst = append(dst, name...)
	return append(dst, data...)
}

// Ready is what a READY command says of the peer's socket. Both fields are slices of
// the command's body.
type Ready struct {
	SocketType []byte // "DEALER", "ROUTER", ...
	Identity   []byte // may be empty
}

// ParseReady reads the data of a READY command. Names of properties are
// case-insensitive (RFC 23). Properties that it does not know are ignored; one that is
// malformed makes all of it an error.
func ParseReady(data []byte) (Ready, error) {
	var r Ready
	rest := data
	for len(rest) > 0 {
		name, value, tail, err := cutProperty(rest)
		if err != nil {
			return r, err
		}
		switch {
		case strings.EqualFold(string(name), "Socket-Type"):
			r.SocketType = value
		case strings.EqualFold(string(name), "Identity"):
			r.Identity = value
		}
		rest = tail
	}
	if r.SocketType == nil {
		return r, errors.New("zmtp: READY without a Socket-Type")
	}
	return r, nil
}

// cutProperty cuts the first property off b, which is not empty: a byte with the length
// of its name, the name, the length of its value in 4 bytes, big endian, and the value.
func cutProperty(b []byte) (name, value, rest []byte, err error) {
	n := int(b[0])
	if n == 0 || len(b) < 1+n+4 {
		return nil, nil, nil, errors.New("zmtp: READY has a malformed property name")
	}
	name, b = b[1:1+n], b[1+n:]
	size := binary.BigEndian.Uint32(b)
	if b = b[4:]; uint64(size) > uint64(len(b)) {
		return nil, nil, nil, fmt.Errorf("zmtp: READY's property %q claims %d bytes, got %d", name, size, len(b))
	}
	return name, b[:size], b[size:], nil
}

// AppendProperty appends a name-value pair in the form of READY's data.
func AppendProperty(dst []byte, name string, value []byte) []byte {
	dst = append(dst, byte(len(name)))
	dst = append(dst, name...)
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(value)))
	return append(dst, value...)
}

// AppendReady appends the READY frame of a socket to dst, with the properties in
// libzmq's order. libzmq sends Identity for DEALER, REQ and ROUTER sockets, even if it
// is empty.
func AppendReady(dst []byte, socketType string, identity []byte) []byte {
	var data []byte
	data = AppendProperty(data, "Socket-Type", []byte(socketType))
	data = AppendProperty(data, "Identity", identity)
	return AppendCommand(dst, CommandReady, data)
}

// ParseError returns the reason that an ERROR command's data gives.
func ParseError(data []byte) (reason []byte, err error) {
	if len(data) == 0 || len(data) < 1+int(data[0]) {
		return nil, errShortCommand
	}
	return data[1 : 1+int(data[0])], nil
}

// ParsePing returns what a PING's data says: for how many tenths of a second the peer
// may stay silent, and the context that the PONG must repeat, a slice of data.
func ParsePing(data []byte) (ttl uint16, context []byte, err error) {
	if len(data) < 2 {
		return 0, nil, errShortCommand
	}
	if len(data) > 2+MaxPingContext {
		return 0, nil, fmt.Errorf("zmtp: PING with a context of %d bytes, at most %d are allowed", len(data)-2, MaxPingContext)
	}
	return binary.BigEndian.Uint16(data), data[2:], nil
}

// AppendPong appends the PONG frame that answers a PING with that context.
func AppendPong(dst []byte, context []byte) []byte {
	return AppendCommand(dst, CommandPong, context)
}
