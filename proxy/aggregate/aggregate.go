// Package aggregate sums what workers of one host push to a server before it leaves
// the host, without a word to job, server or other proxy.
//
// While the links to a server are busy, pushes of equal key lists that come meanwhile
// are added to one. It goes as the push of one worker, the carrier; the others' go
// after it with zeros, which take a few bytes encoded, so that the server hears as many
// messages as without, each with its own meta and in the order of its connection. A
// carried push goes only when the server has answered the carrier's: its worker must
// not hear that values were applied, nor pull, before they are. That is for servers
// that add up what they get, and at once.
//
// A [Table] has the groups of a proxy, a [Queue] is the direction of a connection from
// a worker, a [Hearer] sees what comes for one. Package relay calls both. They hold that
//
//   - each push that was taken goes once, by its own connection, or its connection ends;
//   - the values of a push are in one sum, and that goes at most once;
//   - a carried push goes after its carrier's answer was heard. Where that can come no
//     more, since a connection broke, it never goes: its connection is reset, and its
//     worker hears of no push that is lost.
//
// Nobody repeats anything here. Jobs with PS_RESEND are left alone: of a proxy that is
// killed the next would not know which repeated pushes are in a sum.
package aggregate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/psidecar/psidecar/proxy/jobs"
)

// Least is the size of the smallest pushes that are summed, in bytes of values.
const Least = 4 << 10

// Most is that of the largest: larger ones mostly pass in the kernel, and zeros of
// that size would not be encoded.
const Most = 64 << 20

// Why pushes are not summed.
const (
	Alone     = "alone"       // no other worker of this host pushes to the server through this proxy
	First     = "first"       // the worker has not pushed this list of keys on the connection before: they may be initial values
	Kind      = "type"        // nobody says what the values are, or BytePS sends them
	Large     = "large"       // more than 64 MiB, or than there was memory to hold
	NoRoom    = "memory"      // all that may be kept is
	Repeats   = "resend"      // the job uses PS_RESEND
	Sums      = "synchronous" // the server answers pushes together: it does not add at once
	Unheard   = "unheard"     // the server's answers to the worker have not been seen to come through this proxy
	Unknown   = "unknown"     // node ids: the job's node table came before this proxy, or bypassed it
	Retired   = "ending"      // the connection is about to go on in another proxy
	Unscoped  = "no_agent"    // nobody says of which job's cgroup the worker is
	Slower    = "slower"      // answers come sooner where pushes go one by one, by trials
	Unwanted  = "unwanted"    // the job's owner or the planner does not want it, or nobody has asked for it
	Rules     = "rules"       // a rule leaves out values of pushes: slim, or what depends on each worker's pulls
	Elsewhere = "route"       // requests that the proxies make or have split
)

// Reasons lists them.
var Reasons = []string{Alone, First, Kind, Large, NoRoom, Repeats, Sums, Unheard, Unknown, Retired, Slower, Unscoped, Unwanted, Rules, Elsewhere}

// ErrLost is the end of a connection of which a push is in a sum whose answer can come
// no more.
var ErrLost = errors.New("aggregate: the push that carried this worker's values was lost with its connection")

// Reserver bounds memory: relay.Memory is one.
type Reserver interface {
	TryReserve(n int) bool
	Unreserve(n int)
}

// Options of a [Table].
type Options struct {
	// Wait is how long a push may wait on purpose for the other workers'.
	Wait time.Duration
	// Try has pushes of a job go one by one where their answers come sooner then.
	Try bool
	// Bytes bounds what the sums of one server take.
	Bytes int
	// Chars is what values of PS-lite's types CHAR and OTHER are: the name of a kind of
	// package element; empty: nothing that can be added.
	Chars string
	// Memory bounds all; nil: nothing does.
	Memory Reserver
	// AnswerWithin is how long the answer to a carrier is waited for, once all of it has
	// left, before its server counts as one that answers pushes together; 0: 10 s.
	AnswerWithin time.Duration

	now    func() time.Time
	manual bool // tests call tick
}

// Counts says what came of summing, since the start.
type Counts struct {
	Sums        uint64 `json:"sums"`         // pushes that went with others' values in them
	Carried     uint64 `json:"carried"`      // pushes that went as zeros
	SparedBytes uint64 `json:"spared_bytes"` // of values of these
	Alone       uint64 `json:"alone"`        // pushes that waited for a busy link, and nobody's came meanwhile
	Lost        uint64 `json:"lost"`         // pushes whose connections were reset, since their carrier's broke
	HeldBytes   uint64 `json:"held_bytes"`   // now
	// Passed are pushes of 4 KiB or more that went as they came, by reason; those that
	// found the link free are under none.
	Passed map[string]uint64 `json:"passed,omitempty"`
}

func (c *Counts) pass(why string) {
	if c.Passed == nil {
		c.Passed = map[string]uint64{}
	}
	c.Passed[why]++
}

// addCounts adds other counts to c.
func (c *Counts) addCounts(o Counts) {
	c.Sums += o.Sums
	c.Carried += o.Carried
	c.SparedBytes += o.SparedBytes
	c.Alone += o.Alone
	c.Lost += o.Lost
	c.HeldBytes += o.HeldBytes
	for why, n := range o.Passed {
		if c.Passed == nil {
			c.Passed = map[string]uint64{}
		}
		c.Passed[why] += n
	}
}

// A Table has the jobs of this host, and the groups of their servers. It is safe for use
// by several goroutines.
type Table struct {
	opts   Options
	ending atomic.Bool // nothing is taken any more

	mu   sync.Mutex // guards the rest
	jobs map[jobs.Scope][]*job
	past Counts // of groups that are forgotten, and of pushes without one
}

// New returns an empty Table.
func New(o Options) (*Table, error) {
	if o.Wait < 0 {
		return nil, fmt.Errorf("aggregate: a wait of %v", o.Wait)
	}
	if o.Chars != "" {
		if _, ok := adderOf(0, o.Chars); !ok {
			return nil, fmt.Errorf("aggregate: values of %q cannot be added", o.Chars)
		}
	}
	if o.Bytes == 0 {
		o.Bytes = 256 << 20
	}
	if o.AnswerWithin == 0 {
		o.AnswerWithin = 10 * time.Second
	}
	if o.now == nil {
		o.now = time.Now
	}
	return &Table{opts: o, jobs: map[jobs.Scope][]*job{}}, nil
}

// Bound has sums count towards the memory of something else. Call it before there are
// connections.
func (t *Table) Bound(m Reserver) { t.opts.Memory = m }

// Tries reports whether it is found out, for each job, whether sums make it slower.
func (t *Table) Tries() bool { return t.opts.Try }

// End stops summing, and waits until all sums have been answered. Connections go on
// meanwhile, since carried pushes wait for answers.
func (t *Table) End(ctx context.Context) {
	t.ending.Store(true)
	look := time.NewTicker(2 * time.Millisecond)
	defer look.Stop()
	for t.waits() {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
	}
}

// waits reports whether something that was taken has yet to go.
func (t *Table) waits() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, all := range t.jobs {
		for _, j := range all {
			for g := range maps.Values(j.groups) {
				if g.waits() {
					return true
				}
			}
		}
	}
	return false
}

// Counts returns the figures of now.
func (t *Table) Counts() Counts {
	t.mu.Lock()
	defer t.mu.Unlock()
	var c Counts
	c.addCounts(t.past)
	for _, all := range t.jobs {
		for _, j := range all {
			for g := range maps.Values(j.groups) {
				c.addCounts(g.figures())
			}
		}
	}
	return c
}
