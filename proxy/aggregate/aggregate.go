// Package aggregate sums what workers of one host push to a server before it leaves the host,
// without job, server or other proxy knowing.
//
// While the links to a server are busy, pushes of equal key lists that come meanwhile are
// added up. The sum goes as the push of one worker, the carrier. The others' pushes go after
// it with zeros, which take a few bytes encoded, so that the server receives as many messages
// as without, each with its own meta and in the order of its connection. A carried push goes
// only when the server has answered the carrier's: its worker must not learn that its values
// were applied, nor pull, before they are. That is sound for servers that add what they get,
// and do so at once.
//
// Where key lists differ, as with sparse data, each message keeps its own. The sum carries what
// the other pushes have for its keys, and these go with zeros there, and what is left for the
// other keys, after the answer. Of what is left, the next one carries what it shares with those
// after it: the values of each key leave the host once, and the last of n workers waits for n-1
// answers.
//
// A [Table] has the groups of a proxy, a [Queue] is the direction of a connection from a
// worker, and a [Hearer] sees what comes for one. Package relay calls the latter two. They
// guarantee that
//
//   - each push that was taken goes once, over its own connection, or its connection ends;
//   - each value of a push is in one sum, and that goes at most once;
//   - a push that others carry, even in part, goes after the answers to them were heard, however long that takes.
//     Where one cannot come any more, since a connection broke, it never goes: its connection is reset, and its
//     worker does not learn of a push that is lost;
//   - the first values that a connection pushes for a key go as they came, as they may be initial ones.
//
// Of a push whose connection ends while others carry a part of it, the server has that part. So
// it is with a push to several servers, of which each gets a message: its worker hears of it
// only if all have arrived. Where lists are equal a push is lost, or arrives, as a whole.
//
// A push that the router has split comes in parts, each for the server that has the keys now: a part
// is summed as a push to that server. What moves keys is not. A move waits for all requests for its
// keys that are in flight, as those of sums are until they are answered, and a sum has values only of
// keys that its carrier's push has: no move can overtake them.
//
// # What servers must be like
//
// A server that answers pushes together would wait for those that a sum holds back. And one with PS_RESEND
// has its workers repeat pushes, of which nobody could tell whether a sum that has left contains them: jobs
// with PS_RESEND are not summed. Both show when a server answers a push while another one waits here: it answers
// one by one, and does not acknowledge, which it would have done before. So one push goes alone, with the values
// of its worker, while others wait. Only when the server has answered it are pushes added up
// (handler.go).
//
// # A push
//
// Queue.Take decides whether a push passes (pass, with a reason), joins an open batch, or
// opens one. When the links are quiet, group.next chooses the oldest batch that is ripe, and
// a carrier: an item at the head of its queue. Due returns the carrier's frames with the sum,
// to which group.carry has added what younger batches have for the same keys; the batch is
// sent. When the Hearer hears the answer the batch is over, and Due returns zeros for its other
// items as they reach the heads of their queues. Batches that have given it values can go, too:
// those with values left as the next to be chosen, the others with zeros.
//
// # Concurrency
//
// A group's mutex guards the state of all its batches, queues and pairs. A Queue and a Hearer
// are each used by one goroutine of the relay; groups poke queues through Link.Wake. Table.mu comes
// before group.mu.
package aggregate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/psidecar/psidecar/proxy/jobs"
	"github.com/psidecar/psidecar/proxy/payoff"
	"github.com/psidecar/psidecar/proxy/relay"
)

// Least is the default of Options.Least.
const Least = 4 << 10

// Most is the maximum size: larger pushes mostly pass in the kernel, and zeros of that size
// would not be encoded.
const Most = 64 << 20

// Reasons why a push is not summed, as they are counted and shown.
const (
	Alone     = "alone"       // no other worker of this host pushes to the server through this proxy
	First     = "first"       // the worker has not pushed these keys, or most of them, on the connection before: they may be initial values
	Kind      = "type"        // the type of the values is unknown, or they are BytePS's
	Large     = "large"       // more than Most, or than there was memory to hold
	NoRoom    = "memory"      // all the memory for sums is in use
	Resend    = "resend"      // the job uses PS_RESEND
	Sums      = "synchronous" // the server answers pushes together: it does not add at once
	Unheard   = "unheard"     // the server's answers to the worker have not been seen to come through this proxy
	Unknown   = "unknown"     // node ids: the job's node table came before this proxy, or bypassed it
	Retired   = "ending"      // this proxy is about to end
	Unscoped  = "no_agent"    // no agent has told which job's cgroup the worker is in
	Slower    = "slower"      // according to trials, answers come sooner where pushes go one by one
	Unwanted  = "unwanted"    // the job's owner or the planner does not want it, or nothing asks for it
	Rules     = "rules"       // a rule leaves out values of pushes: slim, or what depends on each worker's pulls
	Handler   = "handler"     // it is not known that the servers add
	Elsewhere = "route"       // the proxies' own: they move keys
)

// Reasons lists all of them.
var Reasons = []string{Alone, First, Kind, Large, NoRoom, Resend, Sums, Unheard, Unknown, Retired, Slower, Unscoped, Unwanted, Handler, Rules, Elsewhere}

// ErrLost ends a connection that has a push in a sum whose answer cannot come any more.
var ErrLost = errors.New("aggregate: the push that carried this worker's values was lost with its connection")

// Options configure a [Table].
type Options struct {
	// Wait is how long a push may wait on purpose for those of other workers, although the
	// links are free.
	Wait time.Duration
	// Trials has what finds out, for each job, whether answers come sooner where pushes go one by
	// one; nil: pushes are summed in any case.
	Trials *payoff.Trials
	// Least is the minimum size of pushes that are summed, in bytes of values: each that waits costs
	// time. 0: the constant Least.
	Least int
	// Bytes bounds the sums for one server, with their key lists; 0: 256 MiB.
	Bytes int
	// Chars is what values of PS-lite's types CHAR and OTHER are: the name of a kind of
	// package element; empty: they cannot be added.
	Chars string
	// Memory bounds all sums and their key lists together; nil: nothing does.
	Memory *relay.Memory
	// AnswerWithin is how long the answer to the push that goes alone is waited for, once all of it
	// has left, before the server counts as one that answers pushes together; 0: 10 s.
	AnswerWithin time.Duration
	// File keeps the jobs' node tables for the proxy that replaces this one; empty: it sums a job's
	// pushes only when the job connects again.
	File string
	Log  *slog.Logger // nil: slog.Default()

	now    func() time.Time
	manual bool // tests call tick
}

// Counts are totals since the start, except for HeldBytes.
type Counts struct {
	Sums        uint64 `json:"sums"`         // pushes that carried others' values
	Carried     uint64 `json:"carried"`      // pushes that went as zeros
	Partial     uint64 `json:"partial"`      // pushes, or sums of pushes, that went with zeros for keys that others had carried
	SparedBytes uint64 `json:"spared_bytes"` // of values of Carried, and of those that others had carried for Partial
	Alone       uint64 `json:"alone"`        // pushes that waited for a busy link, and no other came meanwhile
	Lost        uint64 `json:"lost"`         // pushes whose connections were reset, since their carrier's broke
	HeldBytes   uint64 `json:"held_bytes"`   // now
	// Passed are pushes of at least Options.Least that went as they came, by reason. Those that found
	// the link free have none.
	Passed map[string]uint64 `json:"passed,omitempty"`
}

// pass counts a push that is not summed.
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
	c.Partial += o.Partial
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

// Table has the jobs of this host, and the groups of their servers. It is safe for concurrent
// use.
type Table struct {
	opts   Options
	ending atomic.Bool // nothing is taken any more
	saving sync.Mutex  // is locked while Options.File is written, before mu

	mu   sync.Mutex // guards the rest
	jobs map[jobs.Scope][]*job
	// scopes has the keys of jobs, the oldest first; at most maxScopes.
	scopes []jobs.Scope
	past   Counts // of groups that are forgotten, and of pushes without one
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
	if o.Least < 0 || o.Least > Most {
		return nil, fmt.Errorf("aggregate: a minimum size of %d bytes: want 1 to %d", o.Least, Most)
	}
	if o.Least == 0 {
		o.Least = Least
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
	if o.Log == nil {
		o.Log = slog.Default()
	}
	t := &Table{opts: o, jobs: map[jobs.Scope][]*job{}}
	if o.File != "" {
		t.load()
	}
	return t, nil
}

// Bound sets Options.Memory. Call it before there are connections.
func (t *Table) Bound(m *relay.Memory) { t.opts.Memory = m }

// Least returns the minimum size of pushes that are summed, in bytes of values.
func (t *Table) Least() int { return t.opts.Least }

// Tries reports whether trials are made.
func (t *Table) Tries() bool { return t.opts.Trials != nil }

// End stops summing, and blocks until all sums have been answered or ctx ends. Connections
// must go on meanwhile, since carried pushes wait for answers.
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

// waits reports whether any push that was taken has yet to go.
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

// Counts returns the current totals.
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
