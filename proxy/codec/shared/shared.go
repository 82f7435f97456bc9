// Package shared sends values once to a host of which several processes pull them.
//
// The sending proxy keeps what it sent and numbers it. Every further process of the same
// job on that host that is answered with the same bytes gets the number. The values
// themselves travel over a connection of their own between the two proxies, the lane, whose
// reader writes to memory alone: a process that does not read holds up its own link and no
// other.
//
// A [Source] is the sending end's state and a [Store] the receiving end's; neither has a
// socket or a clock, so tests drive them step by step. A [Group] is a Source with its lane,
// [Stores] are all of a proxy's Stores with theirs. An [Outlet] and an [Inlet] are a link's
// ends of the two. Package compact calls them.
//
//   - Two values are equal if all of their bytes are. The sender compares with the
//     bytes that it keeps. It needs them anyway, in case the lane breaks, and a
//     collision-resistant digest takes longer than comparing and copying together.
//   - A group is the pair of one process of another proxy and one job of this host,
//     named by 128 random bits that only the two proxies know. A link belongs to one
//     group, and a number refers to values sent in that group: values of another job
//     cannot be named in it.
//   - The sender alone decides which values both ends keep, within the memory that the
//     receiver has granted. It drops nothing before each link that referred to it has
//     acknowledged its use or has ended. So every reference that was sent can be
//     resolved, unless the lane is lost for good.
//   - A lane that breaks is made again. Entries that the receiver lacks are sent once
//     more.
//   - Answers that are never the same as a whole, since each process asks for keys of its
//     own, go by key: with the values that the other end does not have. What the other end
//     has of which key both ends know by the lane alone.
//   - A link waits if more than a share of the memory is held for its process, as a
//     link does whose socket is full: its process does not read.
//
// Locks: each Source and each Store has one, and Stores have one that is taken before a
// Store's. A Source has another, coding, and a Group writing, both of which are taken
// before the Source's own and never together. The callbacks wake, perByte and Reserver are
// called while a Source's or Store's lock is held.
package shared

import (
	"crypto/rand"
	"errors"
	"fmt"
)

// Name stands among the codecs in a lane's hello. Its data is an [ID] and the name of
// the codec whose links refer to the lane's values.
const Name = "shared"

// Least is the size of the smallest values that are shared by default, in bytes: for smaller
// ones the frame and its acknowledgement take more time than the values. Fewest is the smallest
// that it may be set to. Receiving ends of the first version rely on Least.
const (
	Least  = 4 << 10
	Fewest = 256
)

// ID names a group. It is random: a link that does not know it cannot refer to the group's
// values.
type ID [16]byte

// NewID returns a random ID.
func NewID() (id ID, err error) {
	_, err = rand.Read(id[:])
	return id, err
}

// Subject is what answers about the same parameters have in common. It says where to look
// for equal values; only a comparison of all their bytes says whether they are equal.
type Subject struct {
	App         int32
	First, Last uint64 // keys
	Keys, Bytes int    // how many keys, and bytes of values
}

var (
	// ErrCorrupt is wrapped where the other end did not write this in the state that both
	// should have.
	ErrCorrupt = errors.New("shared: corrupt reference, or lane")
	// ErrLost says that values that a link refers to cannot come any more: the lane has
	// ended, or the link.
	ErrLost = errors.New("shared: values of a reference are lost")
)

// Forms of values on the lane.
const (
	Plain  byte = iota // as they are
	Words              // by package keylist
	Sparse             // by package sparsewords
	ByKey              // the values of some keys: those that the other end has not, see bykey.go
	Planes             // by package planes
)

// Reserver bounds memory; relay.Memory implements it. TryReserve counts n bytes that are
// about to be kept, if they are free. It must not block: it is called with locks held.
type Reserver interface {
	TryReserve(n int) bool
	Unreserve(n int)
}

// Counts are the effects of sharing, since the start.
type Counts struct {
	Sent          uint64 `json:"sent"`           // entries that went over lanes
	SentBytes     uint64 `json:"sent_bytes"`     // bytes that these took there, repetitions included
	Referred      uint64 `json:"referred"`       // answers whose values another link had brought
	ByKey         uint64 `json:"by_key"`         // answers that went by key: of each only the values that the host had not
	SparedBytes   uint64 `json:"spared_bytes"`   // of the values of Referred, and of keys in ByKey, that the host had
	ReceivedBytes uint64 `json:"received_bytes"` // over lanes
	HeldBytes     uint64 `json:"held_bytes"`     // kept now, at both kinds of ends
	// Plain counts answers that could have been shared and went as they are, by reason.
	Plain map[string]uint64 `json:"plain,omitempty"`
}

// Why values that could be shared go as they are.
const (
	NoLane   = "no_lane" // the lane is not made yet, or broke
	Seldom   = "unlike"  // such values were not the same for several processes, and are tried now and then
	NoRoom   = "memory"  // all entries are in use and the bound is reached
	TooLarge = "large"   // larger than the other end grants
	Slower   = "slower"  // answers come sooner as they are: the link is as fast as memory
)

// Add adds other counts to c.
func (c *Counts) Add(o Counts) {
	c.Sent += o.Sent
	c.SentBytes += o.SentBytes
	c.Referred += o.Referred
	c.ByKey += o.ByKey
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

// spare holds buffers of values that are no longer in use, for the next values of about
// their size, which most answers have. bytes is their capacity in all.
type spare struct {
	free  [][]byte
	bytes int
}

const mostSpare = 64

// get returns a buffer of n bytes of any content, at most twice as large as needed.
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

// giveBack keeps a buffer if no more than room bytes are kept with it; otherwise the
// collector gets it.
func (s *spare) giveBack(b []byte, room int) {
	if len(s.free) < mostSpare && s.bytes+cap(b) <= room {
		s.free = append(s.free, b)
		s.bytes += cap(b)
	}
}

// shrink drops buffers until no more than room bytes are kept.
func (s *spare) shrink(room int) {
	for s.bytes > max(room, 0) {
		last := len(s.free) - 1
		s.bytes -= cap(s.free[last])
		s.free[last] = nil
		s.free = s.free[:last]
	}
}
