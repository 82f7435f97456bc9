package threshold

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/sparse"
	"github.com/psidecar/psidecar/proxy/codec/vector"
)

// Workspace is memory that layers which take turns can share. Its zero value is
// ready.
type Workspace struct {
	selector vector.Selector
	narrow   narrow // residuals gathered for CompressAt
	wide     wide
	room     room
}

// Layer is the state of a layer of one worker: residual, threshold, and the
// number of pushes since it was renewed.
type Layer struct {
	kind     element.Kind
	config   Config
	n        int
	residual residual
	tau      float64
	due      bool // the next push renews the threshold
	since    int  // pushes since the threshold was renewed
	age      int  // pushes since the layer was made, or another one that it goes on for
	begun    int  // age when the configuration was set: k of Algorithm 1 is what came since
	renewed  int  // age when the threshold was renewed
	stats    Stats
}

// NewLayer returns a layer of n numbers with an empty residual.
func NewLayer(kind element.Kind, n int, c Config) (*Layer, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if !kind.Valid() || n < 0 {
		return nil, fmt.Errorf("threshold: a layer of %d numbers of %v", n, kind)
	}
	l := &Layer{kind: kind, config: c, n: n, due: true}
	if ResidualSize(kind, c.Exact) == 8 {
		l.residual = newWide(kind, n)
	} else {
		l.residual = newNarrow(kind, n)
	}
	return l, nil
}

// Len is the number of numbers in the layer.
func (l *Layer) Len() int { return l.n }

// Kind is the kind of the layer's numbers.
func (l *Layer) Kind() element.Kind { return l.kind }

// Bytes is the memory of the residual.
func (l *Layer) Bytes() int { return l.n * ResidualSize(l.kind, l.config.Exact) }

// Stats returns what the layer did.
func (l *Layer) Stats() Stats { return l.stats }

// Threshold is tau of Algorithm 1; 0 before the first push.
func (l *Layer) Threshold() float64 { return l.tau }

// Residual returns how many numbers of the residual are not zero, and the sum
// of their squares. It reads all of it.
func (l *Layer) Residual() (count int, squares float64) { return l.residual.measure() }

// Holds reports whether any number of the residual from one position to before
// another is not zero.
func (l *Layer) Holds(from, to int) bool { return l.residual.holds(from, to) }

// AppendResidual appends the residual, for [Layer.AddResidual] on the same machine.
func (l *Layer) AppendResidual(dst []byte) []byte { return append(dst, l.residual.bytes()...) }

// AddResidual adds what AppendResidual gave of a layer of that kind and precision
// to the numbers at these positions, each once, or to all where at is nil.
func (l *Layer) AddResidual(at []uint32, b []byte) error {
	n := len(at)
	if at == nil {
		n = l.n
	}
	if size := ResidualSize(l.kind, l.config.Exact); len(b) != n*size {
		return fmt.Errorf("threshold: %w: a residual of %d bytes for %d numbers of %d", ErrLength, len(b), n, size)
	}
	for _, i := range at {
		if int(i) >= l.n {
			return fmt.Errorf("threshold: position %d in a layer of %d", i, l.n)
		}
	}
	l.residual.addBytes(at, b)
	return nil
}

// TakeResidual appends the residual of these positions, for [Layer.AddResidual] on
// the same machine, and leaves none of them.
func (l *Layer) TakeResidual(dst []byte, at []uint32) []byte { return l.residual.takeBytes(dst, at) }

// Move has the residual be in that memory from now on, aligned to 8 bytes, as far
// as that suffices; the caller keeps the memory while the layer is in use. Grow
// writes the new numbers there too, as long as there is room.
func (l *Layer) Move(memory []byte) { l.residual.move(memory) }

// SetConfig changes how the layer is compressed from the next push on, which
// renews the threshold. The residual stays. Exact cannot change.
func (l *Layer) SetConfig(c Config) error {
	if err := c.Validate(); err != nil {
		return err
	}
	if ResidualSize(l.kind, c.Exact) != ResidualSize(l.kind, l.config.Exact) {
		return fmt.Errorf("threshold: exact %v cannot become %v while a layer is in use; flush it and make a new one",
			l.config.Exact, c.Exact)
	}
	l.config, l.due, l.since, l.begun = c, true, 0, l.age
	return nil
}

// Compress selects the values to send of the gradient g, the bytes of Len numbers,
// and keeps the rest. Numbers that are not finite are sent and leave no residual;
// so do numbers that are added to them. Zeros are never sent.
func (l *Layer) Compress(w *Workspace, out *sparse.Vector, g []byte) error {
	if len(g) != l.n*l.kind.Size() {
		return fmt.Errorf("threshold: %w: %d bytes for %d numbers of %v", ErrLength, len(g), l.n, l.kind)
	}
	out.Resize(l.kind, l.n)
	l.push(w, out, l.residual, g)
	return nil
}

// CompressAt is [Layer.Compress] for a gradient of which only the numbers at
// the given positions of the layer are there, each once: out has len(at)
// numbers. The threshold, where it is renewed, is that of these numbers.
func (l *Layer) CompressAt(w *Workspace, out *sparse.Vector, at []uint32, g []byte) error {
	if len(g) != len(at)*l.kind.Size() {
		return fmt.Errorf("threshold: %w: %d bytes for %d positions of %v", ErrLength, len(g), len(at), l.kind)
	}
	for _, i := range at {
		if int(i) >= l.n {
			return fmt.Errorf("threshold: position %d in a layer of %d", i, l.n)
		}
	}
	out.Resize(l.kind, len(at))
	part := l.residual.gather(w, at)
	l.push(w, out, part, g)
	l.residual.scatter(part, at)
	return nil
}

// Flush makes out all that is left of the residual, which is empty then, but for
// what rounding to the layer's kind leaves. It reports whether that is anything.
func (l *Layer) Flush(out *sparse.Vector) bool {
	out.Resize(l.kind, l.n)
	out.At = l.residual.compare(smallest, out.Mask, out.At)
	l.moveNumbers(new(Workspace), out, l.residual, 0)
	return len(out.Values) > 0
}

// smallest is the least positive number: a comparison with it tests for zero.
const smallest = math.SmallestNonzeroFloat64

// chunk is how many words of the mask are done at a time, so that what the first
// step wrote is still in the processor's cache for the second.
const chunk = 64

// push is Algorithm 1 for a whole vector or the gathered part of one.
func (l *Layer) push(w *Workspace, out *sparse.Vector, r residual, g []byte) {
	n := out.N
	drain := l.drains() || l.left() == 0
	if n > 0 && l.left() > 0 && l.renews() {
		l.renew(w, out, r, g, drain)
	} else {
		size, limit := l.kind.Size(), l.limit(drain)
		for from := 0; from < len(out.Mask); from += chunk {
			to := min(from+chunk, len(out.Mask))
			first, end, before := from*64, min(to*64, n), len(out.At)
			out.At = r.add(first, end, g[first*size:end*size], limit, out.Mask[from:to], out.At)
			l.moveNumbers(w, out, r, before)
		}
	}
	l.since++
	l.age++
	l.stats.Pushes++
	l.stats.Values += uint64(n)
	if drain {
		l.stats.Drains++
	} else {
		l.judge(out.Count(), n)
	}
}

// renew is a push with a new threshold. A sample tells a bound below which it
// hardly is: the numbers that reach the bound are noted as they are added up,
// and the threshold and what it lets pass are found among these few.
func (l *Layer) renew(w *Workspace, out *sparse.Vector, r residual, g []byte, drain bool) {
	share := l.sparsity()
	bound, sampled := w.selector.Bound(out.N, share, func(i int) float64 { return r.sum(i, g) })
	least := math.Inf(1)
	if sampled {
		least = max(bound, smallest)
	}
	out.At = r.add(0, out.N, g, least, out.Mask, out.At) // line 2
	ok := sampled && len(out.At) <= out.N/3
	if ok {
		if l.tau, ok = r.among(&w.selector, out.At, share); !ok && bound == 0 {
			ok = true // it is one of the zeros
		}
	}
	if !ok {
		l.tau = r.choose(&w.selector, share)
	}
	l.due, l.since, l.renewed = false, 0, l.age
	l.stats.Renewals++
	if limit := l.limit(drain); ok && least <= limit { // line 9
		out.At = r.keep(out.At, limit, out.Mask)
	} else {
		out.At = r.compare(limit, out.Mask, out.At[:0])
	}
	l.moveNumbers(w, out, r, 0) // lines 10 to 12
}

// moveNumbers moves the numbers at out's positions, from the given one on, from r to
// out.
func (l *Layer) moveNumbers(w *Workspace, out *sparse.Vector, r residual, from int) {
	at := out.At[from:]
	var nonFinite int
	out.Values, nonFinite = r.take(w, at, out.Values)
	l.stats.Sent += uint64(len(at))
	l.stats.NonFinite += uint64(nonFinite)
}

// limit is what magnitudes are compared with. The threshold 0 would send zeros,
// which say nothing.
func (l *Layer) limit(drain bool) float64 {
	if drain {
		return smallest
	}
	return max(l.tau, smallest)
}

// renews decides whether this push computes a new threshold (line 3).
func (l *Layer) renews() bool {
	if l.due || l.since >= l.config.Lifespan {
		return true
	}
	if left := l.left(); left > 0 && left < l.config.Ending {
		step := max(1, l.config.Ending/32)
		if (left+step-1)/step != (left+l.age-l.renewed+step-1)/step {
			return true
		}
	}
	warmup := l.config.Warmup
	step := max(1, warmup/32)
	return min(l.age-l.begun, warmup)/step != min(l.renewed-l.begun, warmup)/step
}

// Age is how many pushes of the layer there were.
func (l *Layer) Age() int { return l.age }

// SetAge has the layer go on where another one, of the same numbers, ended, or
// counts pushes of which it saw nothing. With one less than [Layer.Age] what comes
// next is another part of the push before.
func (l *Layer) SetAge(pushes int) { l.age = pushes }

// Sparsity is the share of the next push that waits.
func (l *Layer) Sparsity() float64 { return l.sparsity() }

// Ended reports whether nothing waits any more, by the configuration.
func (l *Layer) Ended() bool { return l.left() == 0 }

// left is how many pushes there are until nothing waits any more.
func (l *Layer) left() int {
	if l.config.End == 0 {
		return math.MaxInt
	}
	return max(l.config.End-l.age, 0)
}

// sparsity is eta for this push.
func (l *Layer) sparsity() float64 {
	if left := l.left(); left <= l.config.Ending {
		return 1 - math.Pow(1-l.config.Sparsity, float64(left)/float64(max(l.config.Ending, 1)))
	}
	pushes := l.age - l.begun
	if pushes >= l.config.Warmup {
		return l.config.Sparsity
	}
	done := float64(pushes+1) / float64(l.config.Warmup+1)
	return 1 - math.Pow(1-l.config.Sparsity, done)
}

// judge has the next push renew the threshold where this one sent too many or too
// few of n numbers; small counts may vary more.
func (l *Layer) judge(sent, n int) {
	if l.config.Slack == 0 {
		return
	}
	want := (1 - l.sparsity()) * float64(n)
	chance := 2 * math.Sqrt(want)
	s := float64(sent)
	l.due = s > want*(1+l.config.Slack)+chance || s < want/2-chance
}

// drains decides whether this push sends all of the residual, by a random number
// that depends on nothing but the seed and the number of pushes.
func (l *Layer) drains() bool {
	if l.config.DrainEvery == 0 {
		return false
	}
	return rand.NewPCG(l.config.Seed, l.stats.Pushes).Uint64() < math.MaxUint64/uint64(l.config.DrainEvery)
}

// Grow makes the layer n numbers long, if it is shorter. Nothing of the new
// gradient is left.
func (l *Layer) Grow(n int) {
	if n > l.n {
		l.residual.grow(n - l.n)
		l.n = n
	}
}
