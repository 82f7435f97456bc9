package keep

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// State is what the next proxy must know of a connection that a proxy hands over when
// it ends in order, beside its socket. Nothing of it is on its way then.
type State struct {
	Session     ID             `json:"session"`
	Dialed      bool           `json:"dialed"` // the proxy dialed the link, and accepted the job's connection
	Client      netip.AddrPort `json:"client"`
	Destination netip.AddrPort `json:"destination"`
	Job         string         `json:"job,omitempty"`
	Origin      string         `json:"origin,omitempty"`
	Far         netip.Addr     `json:"far,omitzero"` // where links come from, of an accepted one
	Cgroup      uint64         `json:"cgroup,omitempty"`
	Netns       uint64         `json:"netns,omitempty"`
	Ready       []byte         `json:"ready,omitempty"` // body of the process's READY command
	// Until is when the other proxy gives up waiting, by the host's CLOCK_MONOTONIC.
	Until time.Duration `json:"until"`

	Left []byte `json:"-"` // what was read of the process's messages and not sent
}

// A state's file, in the byte order of the network: magic and version (8 bytes), CRC-32C
// of all that follows (4), length of the JSON (4), the JSON, what is left.
const (
	stateMagic  = "psdpass\x01"
	stateHeader = len(stateMagic) + 8
	maxDescribe = 16 << 10
	// MaxLeft is the most that is left of one connection: a message that is held for a
	// codec.
	MaxLeft = 256 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// NewStateFile makes a file in memory of a state.
func NewStateFile(s *State) (*os.File, error) {
	text, err := json.Marshal(s)
	if err == nil && (len(text) > maxDescribe || len(s.Left) > MaxLeft) {
		err = fmt.Errorf("%d and %d bytes do not fit", len(text), len(s.Left))
	}
	if err != nil {
		return nil, fmt.Errorf("describing a connection: %w", err)
	}
	fd, err := unix.MemfdCreate("psidecar-state", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("describing a connection: %w", err)
	}
	file := os.NewFile(uintptr(fd), "state")
	b := append([]byte(stateMagic), 0, 0, 0, 0)
	b = binary.BigEndian.AppendUint32(b, uint32(len(text)))
	b = append(append(b, text...), s.Left...)
	binary.BigEndian.PutUint32(b[len(stateMagic):], crc32.Checksum(b[len(stateMagic)+4:], castagnoli))
	if _, err := file.Write(b); err != nil {
		return nil, errors.Join(fmt.Errorf("describing a connection: %w", err), file.Close())
	}
	return file, nil
}

// IsState reports whether a file that was handed over has a [State], and not a [Page].
func IsState(file *os.File) bool {
	var magic [len(stateMagic) - 1]byte
	_, err := file.ReadAt(magic[:], 0)
	return err == nil && string(magic[:]) == stateMagic[:len(magic)]
}

// ReadState reads the file of a proxy before, which stays the caller's.
func ReadState(file *os.File) (*State, error) {
	b, err := io.ReadAll(io.NewSectionReader(file, 0, int64(stateHeader+maxDescribe+MaxLeft+1)))
	if err != nil {
		return nil, fmt.Errorf("reading the saved state of a connection: %w", err)
	}
	return parseState(b)
}

// parseState reads a state's file. All lengths are checked against the file before use:
// it comes from another process, perhaps of another version.
func parseState(b []byte) (*State, error) {
	if len(b) < stateHeader || string(b[:len(stateMagic)]) != stateMagic {
		return nil, fmt.Errorf("the saved state of a connection, %d bytes, has a different version", len(b))
	}
	sum, n := binary.BigEndian.Uint32(b[len(stateMagic):]), binary.BigEndian.Uint32(b[len(stateMagic)+4:])
	rest := b[stateHeader:]
	switch {
	case crc32.Checksum(b[len(stateMagic)+4:], castagnoli) != sum:
		return nil, errors.New("the saved state of a connection has a wrong checksum")
	case n > maxDescribe || uint64(n) > uint64(len(rest)) || len(rest)-int(n) > MaxLeft:
		return nil, fmt.Errorf("the saved state of a connection has a description of %d bytes of %d", n, len(rest))
	}
	s := new(State)
	if err := json.Unmarshal(rest[:n], s); err != nil {
		return nil, fmt.Errorf("the saved state of a connection: %w", err)
	}
	s.Left = rest[n:]
	return s, nil
}

// Monotonic is the host's CLOCK_MONOTONIC, which all processes share.
func Monotonic() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0 // it cannot fail
	}
	return time.Duration(t.Nano())
}
