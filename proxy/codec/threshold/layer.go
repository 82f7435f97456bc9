package threshold

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/sparse"
	"github.com/psidecar/psidecar/proxy/codec/vector"
)

// Workspace is memory that layers can share if they take turns. Its zero value is ready. It
// holds nothing between calls.
type Workspace struct {
	selector vector.Selector
	narrow   narrow // residuals gathered for CompressAt
	wide     wide
	run      run // that of a run of positions, which need not be gathered
	room     room
}

// Layer is the state of one layer of one worker: residual, threshold, and the pushes since
// it was renewed. It is not safe for concurrent use. Only the residual is worth keeping
// across a kill: a layer that begins with the residual of another and its age continues as
// that one would, with a threshold of its own.
type Layer struct {
	kind     element.Kind
	config   Config
	n        int
	residual residual
	tau      float64
	due      bool    // the next push renews the threshold
	since    int     // pushes since the threshold was renewed; at most config.Lifespan
	age      int     // pushes since the layer was made, or since the one was that it continues
	begun    int     // age when the configuration was set: k of Algorithm 1 is age - begun
	renewed  int     // age when the threshold was renewed
	share    float64 // that is sent, with Config.Auto
	stats    Stats
}

// NewLayer returns a layer of n numbers with an empty residual. Its first push computes a
// threshold.
func NewLayer(kind element.Kind, n int, c Config) (*Layer, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if !kind.Valid() || n < 0 {
		return nil, fmt.Errorf("threshold: a layer of %d numbers of %v", n, kind)
	}
	l := &Layer{kind: kind, config: c, n: n, due: true, share: max(autoFirst, 1-c.Sparsity)}
	if kind == element.Float64 {
		l.residual = newWide(n)
	} else {
		l.residual = newNarrow(kind, n)
	}
	return l, nil
}

// Len is how many numbers the layer has.
func (l *Layer) Len() int { return l.n }

// Kind is the kind of the layer's numbers.
func (l *Layer) Kind() element.Kind { return l.kind }

// Bytes is the memory of the residual.
func (l *Layer) Bytes() int { return l.n * ResidualSize(l.kind) }

// Stats returns what the layer did.
func (l *Layer) Stats() Stats { return l.stats }

// Threshold is tau of Algorithm 1; 0 before the first push.
func (l *Layer) Threshold() float64 { return l.tau }

// Residual returns how many numbers of the residual are not zero, and the sum of their
// squares. It reads the whole residual.
func (l *Layer) Residual() (count int, squares float64) { return l.residual.measure(1) }

// SampleResidual is Residual of every stride-th number alone.
func (l *Layer) SampleResidual(stride int) (count int, squares float64) {
	return l.residual.measure(stride)
}

// Holds reports whether any number of the residual at a position in [from, to) is not zero.
func (l *Layer) Holds(from, to int) bool { return l.residual.holds(from, to) }

// AppendResidual appends the residual in the machine's byte order, for [Layer.AddResidual]
// on the same machine.
func (l *Layer) AppendResidual(dst []byte) []byte { return append(dst, l.residual.bytes()...) }

// AddResidual adds numbers that AppendResidual or TakeResidual wrote, of a layer of the
// same kind, to those at the positions, each of which occurs once, or to all
// if at is nil. On an error nothing has changed.
func (l *Layer) AddResidual(at []uint32, b []byte) error {
	n := len(at)
	if at == nil {
		n = l.n
	}
	if size := ResidualSize(l.kind); len(b) != n*size {
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

// TakeResidual appends the residual at these positions, for [Layer.AddResidual] on the same
// machine, and sets it to zero.
func (l *Layer) TakeResidual(dst []byte, at []uint32) []byte { return l.residual.takeBytes(dst, at) }

// Move copies the residual to memory, aligned to 8 bytes, and keeps it there from then on.
// memory must have room for Bytes bytes; the caller owns it and must not touch it while the
// layer is in use. It may be a mapped file. Grow writes new numbers there too, as long as
// there is room, and to the heap beyond that.
func (l *Layer) Move(memory []byte) { l.residual.move(memory) }

// SetConfig changes how the layer is compressed from the next push on, which renews the
// threshold. The residual stays.
func (l *Layer) SetConfig(c Config) error {
	if err := c.Validate(); err != nil {
		return err
	}
	l.config, l.due, l.since, l.begun, l.share = c, true, 0, l.age, max(autoFirst, 1-c.Sparsity)
	return nil
}

// Compress selects what to send of the gradient g, the bytes of Len numbers, and keeps the
// rest. Numbers that are not finite are sent and leave no residual, and so are numbers that
// become infinite by the addition: a residual that held one would never recover. Zeros are
// never sent. out.Values and out.Mask are the caller's to reuse.
func (l *Layer) Compress(w *Workspace, out *sparse.Vector, g []byte) error {
	if len(g) != l.n*l.kind.Size() {
		return fmt.Errorf("threshold: %w: %d bytes for %d numbers of %v", ErrLength, len(g), l.n, l.kind)
	}
	out.Resize(l.kind, l.n)
	l.push(w, out, l.residual, g)
	return nil
}

// CompressAt is [Layer.Compress] for a gradient that has only the numbers at the given
// positions of the layer, each once. out has len(at) numbers. A threshold that is renewed
// is that of these numbers, which stand for the whole layer until the next renewal.
func (l *Layer) CompressAt(w *Workspace, out *sparse.Vector, at []uint32, g []byte) error {
	if len(g) != len(at)*l.kind.Size() {
		return fmt.Errorf("threshold: %w: %d bytes for %d positions of %v", ErrLength, len(g), len(at), l.kind)
	}
	inLine := len(at) > 0
	for k, i := range at {
		if int(i) >= l.n {
			return fmt.Errorf("threshold: position %d in a layer of %d", i, l.n)
		}
		inLine = inLine && int(i) == int(at[0])+k
	}
	out.Resize(l.kind, len(at))
	if inLine {
		l.push(w, out, l.residual.slice(w, int(at[0]), len(at)), g)
		return nil
	}
	part := l.residual.gather(w, at)
	l.push(w, out, part, g)
	l.residual.scatter(part, at)
	return nil
}

// Flush moves all that is left of the residual to out. What rounding to the layer's kind
// leaves stays. It reports whether out has any values.
func (l *Layer) Flush(out *sparse.Vector) bool {
	out.Resize(l.kind, l.n)
	out.At = l.residual.compare(smallest, out.Mask, out.At)
	l.moveNumbers(new(Workspace), out, l.residual, 0)
	return len(out.Values) > 0
}

// smallest is the least positive number. A comparison with it tests for zero.
const smallest = math.SmallestNonzeroFloat64

// chunk is how many words of the mask are done at a time, so that what the first step wrote
// is still in the processor's cache for the second.
const chunk = 64

// push is Algorithm 1 for a whole vector or for the gathered part of one. Its two branches
// are one with a renewed threshold and one with the old: adding (line 2), comparing (line
// 9) and moving (lines 10 to 12) go chunk by chunk only in the second, since the first must
// see all sums before it knows what to compare with.
func (l *Layer) push(w *Workspace, out *sparse.Vector, r residual, g []byte) {
	n := out.N
	// Decided before anything else, as it depends on the number of pushes so far.
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
	if !drain {
		l.judge(out.Count(), n)
	}
}

// renew is a push with a new threshold. A sample gives a bound that the threshold most
// likely reaches. The numbers that reach the bound are noted as they are added up, and both
// the threshold and the numbers above it are found among these few. If the sample misled,
// everything is read again.
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
	if limit := l.limit(drain); ok && least <= limit { // line 9
		out.At = r.keep(out.At, limit, out.Mask)
	} else {
		out.At = r.compare(limit, out.Mask, out.At[:0])
	}
	l.moveNumbers(w, out, r, 0) // lines 10 to 12
}

// moveNumbers moves the numbers at out's positions, from number from of these on, from r to
// out.
func (l *Layer) moveNumbers(w *Workspace, out *sparse.Vector, r residual, from int) {
	at := out.At[from:]
	var nonFinite int
	out.Values, nonFinite = r.take(w, at, out.Values)
	l.stats.NonFinite += uint64(nonFinite)
}

// limit is what magnitudes are compared with. With the threshold 0 zeros would be sent,
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
	// Towards the end, as in the warm-up, the sparsity changes with each push. The
	// threshold follows in 32 steps: a renewal costs more than a push.
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

// SetAge has the layer continue where another one of the same numbers ended, or counts
// pushes that had nothing for it. One less than [Layer.Age] says that the next call has
// another part of the push before.
func (l *Layer) SetAge(pushes int) { l.age = pushes }

// Sparsity is the share of the next push's values that wait.
func (l *Layer) Sparsity() float64 { return l.sparsity() }

// Ended reports whether the configuration's End has come, after which nothing waits.
func (l *Layer) Ended() bool { return l.left() == 0 }

// left is how many pushes there are until nothing waits any more; without an End, very
// many.
func (l *Layer) left() int {
	if l.config.End == 0 {
		return math.MaxInt
	}
	return max(l.config.End-l.age, 0)
}

// sparsity is eta for this push. In the warm-up and before the end the share that is sent,
// 1 - eta, moves exponentially between 1 and 1 - Sparsity or, with Auto, what Adapt has set.
func (l *Layer) sparsity() float64 {
	if left := l.left(); left <= l.config.Ending {
		return 1 - math.Pow(l.target(), float64(left)/float64(max(l.config.Ending, 1)))
	}
	pushes := l.age - l.begun
	if pushes >= l.config.Warmup {
		return 1 - l.target()
	}
	done := float64(pushes+1) / float64(l.config.Warmup+1)
	return 1 - math.Pow(l.target(), done)
}

// judge has the next push renew the threshold if this one sent too many or too few of n
// numbers. The count of independent numbers above a threshold deviates by the root of its
// mean, so that small layers are judged by twice that as well.
func (l *Layer) judge(sent, n int) {
	if l.config.Slack == 0 {
		return
	}
	want := (1 - l.sparsity()) * float64(n)
	chance := 2 * math.Sqrt(want)
	s := float64(sent)
	l.due = s > want*(1+l.config.Slack)+chance || s < want/2-chance
}

// drains decides whether this push sends all of the residual. The random number depends on
// nothing but the seed and the number of pushes, so the same pushes give the same bytes.
func (l *Layer) drains() bool {
	if l.config.DrainEvery == 0 {
		return false
	}
	return rand.NewPCG(l.config.Seed, l.stats.Pushes).Uint64() < math.MaxUint64/uint64(l.config.DrainEvery)
}

// Grow extends the layer to n numbers, if it is shorter, with zeros in the residual.
func (l *Layer) Grow(n int) {
	if n > l.n {
		l.residual.grow(n - l.n)
		l.n = n
	}
}
