package values

import (
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/mapped"
	"github.com/psidecar/psidecar/proxy/codec/threshold"
)

// stream is the state of the pushes of one worker's customer to one server:
// residuals, thresholds, and the sections that were sent lately. It outlives
// connections, of which an old one may still be ending while the next is in use.
//
// Locks: mu guards the state. It is taken after Codec.follows, and before Codec.mu,
// asks.mu and steps.mu; a holder of Codec.mu may only try it (tidy). Two streams are
// locked at once only by moveAway, under Codec.follows, and by abandon, which waits for
// no lock while it has them. Memory that layers take is counted by budget, unless it is
// in the stream's file, whose own memory is.
type stream struct {
	owner  owner
	folder string // of its file; empty: in memory alone
	budget *budget
	counts *counters
	steps  *steps // of its worker
	log    *slog.Logger

	// Guarded by [Codec.mu]:
	links int       // senders that use it, and others that do for a while
	idle  time.Time // since when links is 0

	mu       sync.Mutex // guards the rest; after Codec.follows, and Codec.mu only tries it
	sender   *Sender    // the one that pushed last, or whose link goes on for it; nil once that has ended
	places   []uint32   // of the keys of the last piece
	template *template
	dense    map[uint64]*denseLayer // by key
	narrow   map[layerID]*narrowLayer
	commands commands // of its pushes
	repeats  repeats
	pairs    pairs
	// located has the places of the keys of the last pulls, whose pushes most likely follow;
	// oldest is the one that the next pull replaces.
	located [2]located
	oldest  int
	// saidUnsent: it was logged that the worker seems to end while something waits.
	saidUnsent bool

	file       *mapped.File // nil: nothing is kept yet, or memoryOnly
	memoryOnly bool         // there is no room for a file
	toldRoom   bool         // that was logged
	stepped    func()       // is called between stores, in tests
	order      uint64       // numbers the requests sent, for the order in which they are taken over
}

// denseLayer is a key of many values.
type denseLayer struct {
	*threshold.Layer
	meter  delayMeter
	rule   Rule           // the rule that its configuration is from
	extent *mapped.Extent // where it is in the stream's file; nil: in memory alone
}

// narrowLayer is a span's keys of few values, which share a threshold. It grows as keys
// come.
type narrowLayer struct {
	*threshold.Layer
	meter delayMeter
	rule  Rule
	index *index // where each key's values are in the layer
	// In the stream's file, unless the layer is in memory alone: the numbers, and the
	// keys in one or more extents, the last of which has entries entries.
	tag     mapped.Tag
	extent  *mapped.Extent
	keys    []*mapped.Extent
	entries int
}

// layerID names a layer of keys of few values.
type layerID struct {
	Range
	kind element.Kind
}

// maxLayers bounds the layers of keys of few values of one stream.
const maxLayers = 4096

func newStream(c *Codec, o owner, all *steps) *stream {
	return &stream{owner: o, steps: all, stepped: c.stepped, folder: c.folder, log: c.log, budget: &c.budget, counts: c.counts, dense: map[uint64]*denseLayer{}, narrow: map[layerID]*narrowLayer{}, repeats: newRepeats(), pairs: pairs{budget: &c.budget}}
}

// owes reports whether anything may wait to be sent, or went with that very request
// before and must go with it again. Where nothing waits any more, requests that are too
// old to be repeated are forgotten.
func (s *stream) owes(e exchange) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.dense)+len(s.narrow) > 0 {
		return true
	}
	if s.repeats.areOver(e) {
		s.guarded(func() {
			s.repeats.clear(s)
			s.dropFile()
		})
	}
	before := s.repeats.sent[e]
	return before != nil && len(before.section) > 0
}

// residual returns how many values wait, and the sum of their squares. It reads all of
// them. The caller holds s.mu.
func (s *stream) residual() (values int, squares float64) {
	if !s.guarded(func() { values, squares = s.measure() }) {
		return 0, 0
	}
	return values, squares
}

// measure reads all residuals. It is called within guarded.
func (s *stream) measure() (values int, squares float64) {
	add := func(l *threshold.Layer) {
		n, sum := l.Residual()
		values += n
		squares += sum
	}
	for _, l := range s.dense {
		add(l.Layer)
	}
	for _, l := range s.narrow {
		add(l.Layer)
	}
	return values, squares
}

// restart forgets everything: another process has taken the worker's place, or the
// worker does not come back. Residuals are dropped, and that is counted. The caller
// holds s.mu.
func (s *stream) restart(why Reason) {
	if len(s.dense)+len(s.narrow) > 0 {
		s.counts.why(why)
	}
	for key := range s.dense {
		s.dropDense(key)
	}
	for id := range s.narrow {
		s.dropNarrow(id)
	}
	s.commands = commands{}
	s.repeats.clear(s)
	s.dropFile()
	s.pairs.clear()
	s.forgetLocated(nil)
}

// dropDense forgets a layer and returns its memory, or frees its extent with the next
// commit.
func (s *stream) dropDense(key uint64) {
	if l := s.dense[key]; l.extent != nil {
		s.file.Free(l.extent)
	} else {
		s.budget.give(l.Bytes())
	}
	delete(s.dense, key)
}

// dropNarrow forgets a layer and returns its memory.
func (s *stream) dropNarrow(id layerID) {
	l := s.narrow[id]
	s.forgetLocated(l)
	s.budget.give(l.counted())
	if l.extent != nil {
		s.freeNarrow(l)
	}
	delete(s.narrow, id)
}

// dropFile removes the file of a stream of which nothing is left.
func (s *stream) dropFile() {
	if s.file == nil {
		return
	}
	if err := s.file.Remove(); err != nil {
		s.log.Warn("removing a worker's residuals", "error", err)
	}
	s.file = nil
}

// config returns the rule's configuration for a layer that has seen age pushes.
func (r *Rule) config(seed uint64, age int) threshold.Config {
	c := threshold.DefaultConfig
	c.Sparsity, c.Auto, c.Lifespan, c.Warmup, c.DrainEvery, c.Seed = r.Threshold, r.Auto, r.Lifespan, r.Warmup, r.Drain, seed
	if c.Lifespan == 0 { // of a rule without a threshold, under which there is no residual
		c.Lifespan = math.MaxInt32
	}
	if r.Until > 0 {
		c.End, c.Ending = r.Until, r.Until/4
	}
	// The earlier of the two ends counts.
	if r.End > 0 && (c.End == 0 || age+r.End < c.End) {
		c.End, c.Ending = age+r.End, r.End
	}
	return c
}

// Drains reports whether the rule only drains residuals that other rules left, over
// its End pushes.
func (r *Rule) Drains() bool { return r.Threshold == 0 && r.End > 0 }

// sameThreshold reports whether two rules say the same about a layer.
func sameThreshold(a, b *Rule) bool {
	return a.Threshold == b.Threshold && a.Auto == b.Auto && a.Lifespan == b.Lifespan && a.Warmup == b.Warmup && a.Drain == b.Drain && a.Until == b.Until && a.End == b.End
}

// denseOf returns the layer of a dense piece, made if need be, under a rule. The caller
// holds s.mu.
func (s *stream) denseOf(key uint64, p *piece, r *Rule) (*denseLayer, Reason) {
	l := s.dense[key]
	if l == nil {
		if l = s.newDense(key, p, r); l == nil {
			return nil, ReasonMemory
		}
		s.dense[key] = l
	}
	if l.Kind() != p.kind || l.Len() != p.width {
		return nil, ReasonLength
	}
	follow(l.Layer, &l.rule, r, key)
	return l, ""
}

// newDense makes a layer, in the stream's file if possible; nil if there is no memory.
func (s *stream) newDense(key uint64, p *piece, r *Rule) *denseLayer {
	bytes := p.width * threshold.ResidualSize(p.kind)
	e := s.allocate(kindDense, mapped.Tag{A: key, C: uint32(p.kind)}, bytes+tailSize)
	n := p.width
	switch {
	case e != nil:
		n = 0
	case !s.budget.reserve(bytes):
		return nil
	}
	t, err := threshold.NewLayer(p.kind, n, r.config(key, 0))
	if err != nil {
		panic(err) // rules are checked
	}
	if e != nil {
		// The layer is made empty and grows inside of the extent, so that its residual
		// is never in memory twice.
		t.Move(e.Bytes()[:bytes])
		t.Grow(p.width)
	}
	return &denseLayer{Layer: t, rule: *r, extent: e}
}

// narrowOf is denseOf for keys of few values. It sets the layer's age to the number of
// the step that the push belongs to.
func (s *stream) narrowOf(p *piece, r *Rule, push pushPart) (*narrowLayer, Reason) {
	l, why := s.makeNarrow(p, r)
	if why == "" {
		l.SetAge(s.steps.note(p.layer(), push, l.Age()) - 1)
		follow(l.Layer, &l.rule, r, p.layer().First)
	}
	return l, why
}

// makeNarrow returns the layer of a piece's keys of few values, made if need be. It
// takes no memory before keys come.
func (s *stream) makeNarrow(p *piece, r *Rule) (*narrowLayer, Reason) {
	id := p.layer()
	l := s.narrow[id]
	if l == nil {
		if len(s.narrow) >= maxLayers {
			return nil, ReasonMemory
		}
		t, err := threshold.NewLayer(p.kind, 0, r.config(id.First, 0))
		if err != nil {
			panic(err)
		}
		l = &narrowLayer{Layer: t, rule: *r, index: newIndex(), tag: mapped.Tag{A: id.First, B: id.Last, C: uint32(id.kind)}}
		s.narrow[id] = l
	}
	return l, ""
}

func (p *piece) layer() layerID { return layerID{p.span.Range, p.kind} }

// follow puts a layer under a changed rule. A rule that only drains goes on with the
// sparsity that the layer has now.
func follow(l *threshold.Layer, is, want *Rule, seed uint64) {
	if sameThreshold(is, want) {
		return
	}
	c := want.config(seed, l.Age())
	if want.Drains() {
		if c.Sparsity = l.Sparsity(); c.Sparsity == 0 { // of a proxy before this one
			c.Sparsity = threshold.DefaultConfig.Sparsity
		}
	}
	if err := l.SetConfig(c); err != nil {
		panic(err)
	}
	*is = *want
}

// place appends the positions in a layer of a piece's values, after adding the keys
// that are new; the reason says why that is impossible.
func (s *stream) place(at []uint32, l *narrowLayer, keys pslite.Keys, p *piece) ([]uint32, Reason) {
	if places := s.locatedPlaces(l, keys, p); places != nil {
		return p.positions(at, places), ""
	}
	places, missing, values, same := l.index.locate(s.places[:0], keys, p)
	s.places = places
	if !same {
		return at, ReasonLength
	}
	if missing > 0 {
		counted, ok := s.makeRoom(l, missing, values)
		if !ok {
			return at, ReasonMemory
		}
		defer s.settleCount(l, counted) // also after a fault of the mapping
		for i := range p.keys {
			s.addKey(l, keys.At(p.first+i), p.widthOf(i))
		}
		l.Grow(l.index.values)
		// A message that names a key twice may give it two numbers of values.
		if s.places, _, _, same = l.index.locate(s.places[:0], keys, p); !same {
			return at, ReasonLength
		}
	}
	return p.positions(at, s.places), ""
}
