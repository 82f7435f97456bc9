// Package shared sends values once to a host that several processes of it pull.
//
// The sending proxy keeps what it sent, and numbers it; to every further process of
// the same job on that host which is answered with the same bytes goes the number. The
// values themselves travel over a connection of their own between the two proxies, the
// lane, whose reader writes to memory alone: a process that does not read holds up its
// own link, and no other.
//
// A [Source] is the sending end's state and a [Store] the receiving end's; neither has
// a socket or a clock. A [Group] is a Source with its lane, [Stores] are those of a
// proxy. Package compact calls them.
//
//   - Two values are equal where all their bytes are. The sender compares with the
//     bytes that it keeps: it needs them anyway, for a lane that breaks, and a digest
//     that nobody can collide takes longer than comparing and copying together.
//   - A group is what one other proxy's process has of one job here, named by 128
//     random bits that only the two know. A link belongs to one group, and a number
//     means what was sent of that group: what another job was sent has no name here.
//   - The sender alone decides what both keep, within what the receiver has granted. It
//     drops nothing before each link that referred to it has said that it was used, or
//     that the link has ended. So a reference that was sent can always be resolved, but
//     where the lane is lost for good.
//   - A lane that breaks is made again. What the receiver lacks is sent once more.
//   - A link of which more than a share of the memory waits to be used waits, as one
//     does whose socket is full: its process does not read.
package shared

import (
	"crypto/rand"
	"errors"
	"fmt"
)

// Name stands among the codecs of a lane's hello: its data is an [ID] and the name of
// the codec whose links refer to what the lane brings.
const Name = "shared"

// Least is the size of the smallest values that are shared, in bytes: of smaller ones a
// message more costs more than they do.
const Least = 4 << 10

// ID names a group. It is random: a link that does not know it cannot refer to the
// group's values.
type ID [16]byte

// NewID returns a random one.
func NewID() (id ID, err error) {
	_, err = rand.Read(id[:])
	return id, err
}

// Subject is what answers about the same parameters have in common. It says where to
// look for equal values; whether they are equal, their bytes alone say.
type Subject struct {
	App         int32
	First, Last uint64 // keys
	Keys, Bytes int    // how many keys, and bytes of values
}

var (
	// ErrCorrupt is wrapped where the other end did not write this in the state that
	// both should have.
	ErrCorrupt = errors.New("shared: corrupt reference, or lane")
	// ErrLost is that values that a link refers to can come no more: the lane has ended,
	// or the link itself.
	ErrLost = errors.New("shared: values of a reference are lost")
)

// Forms of values on the lane.
const (
	Plain  byte = iota // as they are
	Words              // by package keylist
	Sparse             // by package sparsewords
)

// Reserver bounds memory: relay.Memory is one. TryReserve counts n bytes that are
// about to be kept, where they are free.
type Reserver interface {
	TryReserve(n int) bool
	Unreserve(n int)
}

// Counts says what came of sharing, since the start.
type Counts struct {
	Sent          uint64 `json:"sent"`           // values that went over lanes
	SentBytes     uint64 `json:"sent_bytes"`     // that they took there
	Referred      uint64 `json:"referred"`       // answers whose values another link had brought
	SparedBytes   uint64 `json:"spared_bytes"`   // of values of these
	ReceivedBytes uint64 `json:"received_bytes"` // over lanes
	HeldBytes     uint64 `json:"held_bytes"`     // now, of what was sent and of what came
	// Plain are answers that could have been shared and went as they are, by reason.
	Plain map[string]uint64 `json:"plain,omitempty"`
}

// Why values that could be shared go as they are.
const (
	NoLane   = "no_lane" // it is not there yet, or broke
	Seldom   = "unlike"  // such values were not the same for several processes, and are tried now and then
	NoRoom   = "memory"  // all that is kept is under way, and no more may be
	TooLarge = "large"   // for what the other end grants
	Slower   = "slower"  // answers come sooner as they are: the link is as fast as memory
)

// Add adds other counts to c.
func (c *Counts) Add(o Counts) {
	c.Sent += o.Sent
	c.SentBytes += o.SentBytes
	c.Referred += o.Referred
	c.SparedBytes += o.SparedBytes
	c.ReceivedBytes += o.ReceivedBytes
	c.HeldBytes += o.HeldBytes
	for why, n := range o.Plain {
		if c.Plain == nil {
			c.Plain = map[string]uint64{}
		}
		c.Plain[why] += n
	}
}

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrCorrupt, fmt.Errorf(format, args...))
}

// spare are buffers for values that are no longer in use, kept for the next of about
// their size, which answers mostly have.
type spare struct {
	free  [][]byte
	bytes int
}

const mostSpare = 64

// get returns a buffer of n bytes, of any content.
func (s *spare) get(n int) []byte {
	for i := len(s.free) - 1; i >= 0; i-- {
		if b := s.free[i]; cap(b) >= n && cap(b)/2 <= n {
			s.bytes -= cap(b)
			s.free[i] = s.free[len(s.free)-1]
			s.free = s.free[:len(s.free)-1]
			return b[:n]
		}
	}
	return make([]byte, n)
}

// giveBack takes a buffer back where no more than room bytes are kept with it.
func (s *spare) giveBack(b []byte, room int) {
	if len(s.free) < mostSpare && s.bytes+cap(b) <= room {
		s.free = append(s.free, b)
		s.bytes += cap(b)
	}
}

// shrink gives buffers to the collector until no more than room bytes are kept.
func (s *spare) shrink(room int) {
	for s.bytes > max(room, 0) {
		last := len(s.free) - 1
		s.bytes -= cap(s.free[last])
		s.free[last] = nil
		s.free = s.free[:last]
	}
}
