// Package values is the codec of links on which the values of pushes and pulls take
// fewer bytes: by thresholding with error feedback (DCT), by Slim-DP, by quantization
// or, without loss, by leaving out values that a worker has already. A [Rule] says
// which of them applies to which jobs and keys; keys, metas and all other messages go
// by package compact.
//
// A [Sender] encodes the messages of a link into heads, from which a [Receiver]
// restores complete messages. Values that were left out of a push become zeros;
// values that were left out of a pull's answer become those that the worker got
// before. Package relay calls both, and gets them from [Codec]. What the values
// become is the business of packages threshold, slim, quantize, unchanged, ef21 and
// rows, which know nothing of messages.
//
// The residual of a worker's pushes belongs to that worker's process and one server,
// not to the connection: see stream. It is kept in files (shelf.go), handed to the
// next proxy (takeover.go, kept.go), sent on when keys move (follow.go) and when a
// worker ends (flush.go, ending.go). The state that both ends of a link keep of
// answers (slim, unchanged, copies) begins with each link, over which everything
// comes once and in order, so that the ends cannot disagree.
//
// A head is, if values are coded, compact's head, a section, the section's length in
// 4 bytes, and modeSection; otherwise compact's head and modeCompact. See FORMAT.md.
package values

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/psidecar/psidecar/internal/policy"
	"github.com/psidecar/psidecar/proxy/codec/compact"
	"github.com/psidecar/psidecar/proxy/codec/shared"
	"github.com/psidecar/psidecar/proxy/relay"
)

// Name is the codec's name in the hello of a link.
const Name = "values"

// formats is the version of everything that the codec writes besides compact. A link
// between proxies of different versions is an error; additions are negotiated by
// offer instead.
const formats = 3

// The last byte of a head says what is before it.
const (
	modeCompact byte = iota
	modeSection
	modeOwn    // an own push of the proxy's, or an ACK: its frames
	modeAnswer // a server's answer to an own push, for the proxy alone
	modeAsks   // compact, of a pull whose answer may come by rows
	modeWhole  // compact, of a pull whose answer is to come whole, although a rule says by rows
)

// Options of a [Codec].
type Options struct {
	Compact compact.Limits
	// StateBytes bounds the memory of values that wait to be sent and of those
	// remembered of pulls, of all jobs together; 0: 1 GiB. Layers beyond it go as they
	// are, counted.
	StateBytes int64
	// Rules are those at the start; see [Codec.SetRules].
	Rules []Rule
	// Titles has the names of jobs and what their owners ask for; nil: nothing.
	Titles *policy.Titles
	// Adds says that the servers of all jobs add each push to their values, at once
	// and without counting pushes. Then residuals may go as an own push when a worker
	// or this proxy ends; any other server would take that for one more push of the
	// worker.
	Adds bool
	// Assigns says that the servers of all jobs store what they get: values that are left
	// out of a push would become zeros there, so that none are.
	Assigns bool
	// Folder is where residuals are kept, so that they survive a kill; empty: in
	// memory alone.
	Folder string
	Log    *slog.Logger // nil: slog.Default()
}

// Codec makes the Senders and Receivers of this proxy's links, and keeps the
// residuals of the pushes of this host's workers. It is safe for concurrent use.
//
// mu guards the maps and is held briefly. Lock order: taking, follows, a stream's mu,
// then mu; fits, asks, permits and moves have locks of their own, which are taken
// last.
type Codec struct {
	compact *compact.Codec
	rules   atomic.Pointer[ruleSet] // planned, then local
	budget  budget
	counts  *counters
	titles  *policy.Titles
	adds    bool
	assigns bool
	log     *slog.Logger
	folder  string
	taking  sync.Mutex    // held while files of earlier proxies are taken over
	follows sync.Mutex    // held while values move between streams; before streams' locks
	taken   atomic.Uint64 // streams taken over
	stepped func()        // is called between stores to files, in tests
	watcher atomic.Pointer[Watcher]
	fits    fits

	mu      sync.Mutex // guards what follows, but for named and what has a lock of its own
	local   []Rule     // by flags, file or interface
	planned []Rule     // by the planner
	ended   bool       // no rule holds any more
	streams map[owner]*stream
	steps   map[worker]*steps
	owns    map[int32]*ownPush // by timestamp
	own     int32              // own pushes so far
	heard   map[relay.Instance]ways
	origins map[string]*origin
	sends   map[process]int // processes for which own pushes are being made
	named   atomic.Uint64   // times that an origin's job, or that it leaves the host, became known
	now     func() time.Time
	moves   moves
	asks    asks
	permits permits
}

// ruleSet is an immutable list of rules: the planner's first, then those by flags, file
// or interface.
type ruleSet struct {
	rules   []Rule
	planned int
}

// New returns the codec of this proxy. The error names the fault of the rules.
func New(o Options) (*Codec, error) {
	c := &Codec{compact: compact.New(o.Compact), streams: map[owner]*stream{}, steps: map[worker]*steps{}, now: time.Now, counts: newCounters(),
		owns: map[int32]*ownPush{}, heard: map[relay.Instance]ways{}, origins: map[string]*origin{}, sends: map[process]int{}}
	c.adds, c.assigns, c.log, c.folder, c.titles = o.Adds, o.Assigns, o.Log, o.Folder, o.Titles
	if c.log == nil {
		c.log = slog.Default()
	}
	c.budget.limit = o.StateBytes
	if o.StateBytes == 0 {
		c.budget.limit = 1 << 30
	}
	return c, c.SetRules(o.Rules)
}

// SetRules replaces the rules, except for the planner's, from each link's next
// message on. A residual under a threshold that no longer holds goes with the next
// push of its keys.
func (c *Codec) SetRules(rules []Rule) error { return c.change(rules, &c.local) }

// SetPlanned is [Codec.SetRules] for the planner's rules, which come before the others.
func (c *Codec) SetPlanned(rules []Rule) error { return c.change(rules, &c.planned) }

// change replaces one of the two lists and publishes a new set. Links notice by the
// pointer, with their next message. After Flush nothing changes any more: the proxy
// is ending.
func (c *Codec) change(rules []Rule, which *[]Rule) error {
	if err := CheckRules(rules); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	*which = rules
	if c.ended {
		return nil
	}
	c.rules.Store(&ruleSet{slices.Concat(c.planned, c.local), len(c.planned)})
	return nil
}

// Rules returns the rules in force, the planner's first. The slice must not be changed.
func (c *Codec) Rules() []Rule { return c.rules.Load().rules }

// LocalRules returns the rules that were set last by [Codec.SetRules]. The slice must not be
// changed.
func (c *Codec) LocalRules() []Rule {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.local
}

// offer is what a side says of itself in a link's hello. Fields are added and never
// change their meaning: an older proxy ignores what it does not know, and is not sent
// it.
type offer struct {
	Formats int             `json:"formats"`
	Compact json.RawMessage `json:"compact"`
	// Pulls is how many bytes of pulled values it remembers on a link, for error
	// feedback; without it, as from an older proxy, none go by that. Wire: it reads
	// values of 16 bits. Packed: it reads ef21's packed differences. Rows: it reads
	// thresholded activations, and pulls that ask for them.
	Pulls  int64 `json:"pulls,omitempty"`
	Wire   bool  `json:"wire,omitempty"`
	Packed bool  `json:"packed,omitempty"`
	Rows   bool  `json:"rows,omitempty"`
}

// Name implements [relay.Codec].
func (c *Codec) Name() string { return Name }

// Offer implements [relay.Codec].
func (c *Codec) Offer() []byte {
	text, err := json.Marshal(offer{formats, c.compact.Offer(), int64(c.pullLimit()), true, true, true})
	if err != nil {
		panic(err) // numbers only
	}
	return text
}

// Open implements [relay.Codec].
func (c *Codec) Open(l relay.Link, offered []byte) (relay.Sender, relay.Receiver, error) {
	var theirs offer
	if err := json.Unmarshal(offered, &theirs); err != nil {
		return nil, nil, fmt.Errorf("values: the other proxy's offer %q: %w", offered, err)
	}
	// The link fails rather than have either end read what it does not know.
	if theirs.Formats != formats {
		return nil, nil, fmt.Errorf("values: the other proxy writes formats %d, this one %d", theirs.Formats, formats)
	}
	cs, cr, err := c.compact.Open(l, theirs.Compact)
	if err != nil {
		return nil, nil, err
	}
	c.countLink(l, 1)
	return newSender(c, l, cs.(*compact.Sender), theirs), newReceiver(c, l, cr.(*compact.Receiver)), nil
}

// ServeLane is [compact.Codec.ServeLane].
func (c *Codec) ServeLane(ctx context.Context, from relay.Instance, id []byte, conn net.Conn, m *relay.Memory) error {
	return c.compact.ServeLane(ctx, from, id, conn, m)
}

// Shared is [compact.Codec.Shared].
func (c *Codec) Shared() shared.Counts { return c.compact.Shared() }

// ways counts the links with another proxy: there, and back, over which answers come.
type ways struct{ there, back int }

// countLink counts a link or, with n -1, its end.
func (c *Codec) countLink(l relay.Link, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	other, w := l.Dialer, ways{back: n}
	if l.Dialed {
		other, w = l.Acceptor, ways{there: n}
	}
	w.there, w.back = w.there+c.heard[other].there, w.back+c.heard[other].back
	if c.heard[other] = w; w == (ways{}) {
		delete(c.heard, other)
	}
}

// hearsAll reports whether every node that is reached by way of another proxy also
// answers by way of it: nodes connect to each other, so there is a link back for each.
// If one is missing nobody knows whose, and an answer to an own push could bypass this
// proxy and reach a worker that did not ask.
func (c *Codec) hearsAll(other relay.Instance) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.heard[other]
	return w.back > 0 && w.back >= w.there
}

// owner names the pushes that a stream is for: those of a worker's customer to one
// server.
type owner struct {
	origin, node  string // the process, and its id in the job
	server        netip.AddrPort
	app, customer int32
}

const (
	// maxStreams bounds how many streams are kept.
	maxStreams = 4096
	// idleFor is how long a stream without a link is kept: its worker reconnects within
	// seconds, or has ended.
	idleFor = 5 * time.Minute
)

// join returns the stream of an owner, made if need be, and counts one more user,
// which has to call leave. It returns nil beyond the bound, or if the stream does not
// exist and make is false.
func (c *Codec) join(o owner, make bool) *stream {
	s, idle := c.find(o, make)
	c.abandon(idle)
	return s
}

// find is join, but for the streams that are given up to make room, which the caller has to pass
// to abandon.
func (c *Codec) find(o owner, make bool) (s *stream, idle []*stream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s = c.streams[o]; s == nil {
		// Only when a stream is new, which is when there could be too many.
		idle = c.tidy()
		if !make || len(c.streams) >= maxStreams {
			return nil, idle
		}
		s = newStream(c, o, c.stepsOf(o.worker()))
		c.streams[o] = s
	}
	s.links++
	return s, idle
}

// stepsOf returns where a worker's pushes are counted, for one more stream. The caller
// holds c.mu.
func (c *Codec) stepsOf(w worker) *steps {
	s := c.steps[w]
	if s == nil {
		s = &steps{layers: map[layerID]*stepped{}}
		c.steps[w] = s
	}
	s.streams++
	return s
}

// leave records that a link no longer uses a stream. Once the proxy is ending, the last
// one releases the stream's file: the worker may be with the next proxy as soon as it
// is no longer with this one.
func (c *Codec) leave(s *stream) {
	c.mu.Lock()
	s.links--
	s.idle = c.now()
	last := c.ended && s.links == 0
	c.mu.Unlock()
	if !last { // the worker may be with the next proxy as soon as it is not with this one
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.release(); err != nil {
		c.log.Warn("saving residuals for the next proxy", "error", err)
	}
}

// tidy takes streams whose worker has been gone for long out of the maps, and returns them, locked,
// for abandon. The caller holds c.mu, so that a stream that is in use is skipped rather than waited
// for.
func (c *Codec) tidy() (idle []*stream) {
	for o, s := range c.streams {
		if s.links > 0 || c.now().Sub(s.idle) <= idleFor || !s.mu.TryLock() {
			continue
		}
		idle = append(idle, s)
		delete(c.streams, o)
		if s.steps.streams--; s.steps.streams == 0 {
			delete(c.steps, o.worker())
		}
	}
	return idle
}

// abandon forgets what the streams of tidy hold, and unlocks them. If anything still waits of one,
// its worker's last barrier bypassed this proxy, or it made none. The caller does not hold c.mu:
// files are read and removed, and on a slow disk every connection that pushes would wait.
func (c *Codec) abandon(idle []*stream) {
	for _, s := range idle {
		if waits, _ := s.residual(); waits > 0 && !s.saidUnsent {
			c.log.Warn("a worker exited without a barrier visible to this proxy: its server does not receive the residuals. "+
				"Run a proxy on the scheduler's host to make barriers visible, or end the threshold earlier (--threshold-until)",
				"worker", s.owner.node, "server", s.owner.server, "values", waits)
		}
		s.guarded(func() { s.restart(ReasonAbandoned) })
		s.mu.Unlock()
	}
}

// budget bounds memory in bytes. It is safe for concurrent use.
type budget struct {
	limit int64
	used  atomic.Int64
}

func (b *budget) reserve(n int) bool {
	if b.used.Add(int64(n)) <= b.limit {
		return true
	}
	b.used.Add(int64(-n))
	return false
}

func (b *budget) give(n int) { b.used.Add(int64(-n)) }

// Waiting returns the sum of the squares of all values that wait.
func (c *Codec) Waiting() (squares float64) {
	c.mu.Lock()
	streams := slices.Collect(maps.Values(c.streams))
	c.mu.Unlock()
	for _, st := range streams {
		st.mu.Lock()
		_, sum := st.residual()
		st.mu.Unlock()
		squares += sum
	}
	return squares
}

// A Watcher sees the messages that processes of this host send in a job; node is the
// sender's id, and connection says whose message it is and where it goes. It must not
// keep the frames, and is called by the goroutines of links.
type Watcher func(job, connection string, node int32, frames [][]byte)

// Watch has every message of this host's processes shown to see from then on, whole;
// nil ends it.
func (c *Codec) Watch(see Watcher) {
	if see == nil {
		c.watcher.Store(nil)
		return
	}
	c.watcher.Store(&see)
}
