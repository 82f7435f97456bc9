package zmtp

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// GreetingSize is the size of a ZMTP 3 greeting in bytes.
const GreetingSize = 64

// Greeting is the fixed block that each side sends first, as it stands on the wire:
// signature (10 bytes), version (2), mechanism (20), as-server (1), filler (31).
type Greeting [GreetingSize]byte

// Offsets into a greeting.
const (
	signatureEnd = 9
	majorAt      = 10
	minorAt      = 11
	mechanismAt  = 12
	asServerAt   = 32
)

// NewGreeting returns the greeting of a ZMTP 3.minor peer with the NULL mechanism.
// identityLen is the length of its identity: libzmq writes it plus one into the
// signature, for peers that speak ZMTP 1.
func NewGreeting(minor byte, identityLen int) Greeting {
	var g Greeting
	g[0] = 0xff
	binary.BigEndian.PutUint64(g[1:], uint64(identityLen)+1)
	g[signatureEnd] = 0x7f
	g[majorAt], g[minorAt] = 3, minor
	copy(g[mechanismAt:], "NULL")
	return g
}

// Version returns the protocol version, 3.0 or 3.1 as a rule.
func (g *Greeting) Version() (major, minor byte) { return g[majorAt], g[minorAt] }

// Mechanism returns the security mechanism's name without its padding.
func (g *Greeting) Mechanism() string {
	return string(bytes.TrimRight(g[mechanismAt:asServerAt], "\x00"))
}

// check looks at the first n bytes of a greeting, n being what has come so far, and
// reports as early as possible what can no longer become ZMTP 3.
func (g *Greeting) check(n int) *SyntaxError {
	switch {
	case n > 0 && g[0] != 0xff:
		return &SyntaxError{0, fmt.Sprintf("the stream begins with %#02x, not with ZMTP's ff: the peer speaks another protocol", g[0])}
	case n > signatureEnd && g[signatureEnd] != 0x7f:
		return &SyntaxError{signatureEnd, fmt.Sprintf("the signature ends in %#02x, not in 7f: the peer speaks another protocol", g[signatureEnd])}
	case n > majorAt && g[majorAt] < 3:
		return &SyntaxError{majorAt, fmt.Sprintf("the peer speaks ZMTP revision %d, older than 3.0 (libzmq before 4.0)", g[majorAt])}
	}
	return nil
}
