package multilevel

import (
	"context"
	"math"

	"github.com/psidecar/psidecar/planner/partition"
)

// A refinement improves the partition of one level by DWW21's k-way version of the
// Fiduccia-Mattheyses algorithm. The move with the greatest gain is made first, even if it is a
// loss; each vertex moves at most once per pass; gains are updated after each move; and at the end
// of a pass the moves after its best moment are undone. So a pass can go through a loss to a better
// partition but never ends with a worse one.
//
// Moves that would overload a machine, with samples, with parameters above theta, or with traffic
// far above the others', are left out for the rest of the pass.
type refinement struct {
	*gains
	theta int64
	// By machine, the weight of its samples.
	load []int64
	// By machine, |N(D_i)| by weight.
	used  []int64
	limit []int64
	queue queue
	state []vertexState
	// vertex*words + machine/64: a bit for each move that is left out in this pass.
	left  []uint64
	words int
	// The moves of this pass, to undo the last of them.
	moves []move
}

// A vertexState says whether a vertex may move in this pass.
type vertexState uint8

const (
	free vertexState = iota
	// Moved in this pass, or fixed.
	locked
)

// A move records where a vertex was.
type move struct{ vertex, from int32 }

const (
	// passes bounds the number of passes; most of the gain is in the first ones.
	passes = 6
	// crowd is the fraction by which a move may bring a machine's traffic above the mean.
	crowd = 0.05
)

// newRefinement returns a refinement of part, which it changes. limit are the largest weights of
// samples, relaxed or not.
func newRefinement(l *level, o partition.Options, part []int32, limit []int64) *refinement {
	r := &refinement{
		gains: newGains(l, o.K, part),
		theta: o.Theta,
		load:  make([]int64, o.K),
		used:  make([]int64, o.K),
		limit: limit,
		queue: newQueue(l.vertices()),
		state: make([]vertexState, l.vertices()),
		words: (o.K + 63) / 64,
	}
	r.left = make([]uint64, l.vertices()*r.words)
	if r.theta == 0 {
		r.theta = math.MaxInt64
	}
	for v, i := range part {
		r.load[i] += l.weight[v]
	}
	for e := range int32(l.netCount()) {
		for i := range int32(o.K) {
			if r.samplesAt(e, i) > 0 {
				r.used[i] += int64(l.netCost[e])
			}
		}
	}
	return r
}

// makePasses makes passes until one gains nothing, or passes have been made.
func (r *refinement) makePasses(ctx context.Context) error {
	for range passes {
		gained, err := r.pass(ctx)
		if err != nil || gained == 0 {
			return err
		}
	}
	return nil
}

// patience returns the number of moves without a new best after which a pass ends.
func (r *refinement) patience() int { return 50 + r.l.samples/10 }

// pass makes one pass and returns its gain.
func (r *refinement) pass(ctx context.Context) (int64, error) {
	r.begin()
	var sum, best int64
	kept := 0
	for {
		v, gain, ok := r.queue.pop()
		if !ok || len(r.moves)-kept > r.patience() {
			break
		}
		j := r.target(v)
		if !r.feasible(v, j) {
			// The vertex comes back with its next best machine, if it has one.
			r.leaveOut(v, j)
			r.enqueue(v)
			continue
		}
		r.moves = append(r.moves, move{v, r.part[v]})
		r.carry(v, j)
		r.state[v] = locked
		for _, u := range r.touched {
			r.enqueue(u)
		}
		if sum += int64(gain); sum > best {
			best, kept = sum, len(r.moves)
		}
		if len(r.moves)%256 == 0 && ctx.Err() != nil {
			return 0, ctx.Err()
		}
	}
	// Undo in reverse order, so that every intermediate state is one that has existed.
	for i := len(r.moves) - 1; i >= kept; i-- {
		r.carry(r.moves[i].vertex, r.moves[i].from)
	}
	return best, ctx.Err()
}

// begin starts a pass: every vertex that is not fixed may move, and is queued by its best move.
func (r *refinement) begin() {
	r.queue.clear()
	r.moves = r.moves[:0]
	clear(r.left)
	for v := range r.state {
		r.state[v] = free
		if r.l.fixed[v] >= 0 {
			r.state[v] = locked
		}
		r.enqueue(int32(v))
	}
}

// enqueue queues a vertex by its best move that is not left out, or removes it from the queue if it
// has none. Parameters move only for a gain: a detour of a sample may pay off when its parameters
// follow, but a parameter has nothing that follows it.
func (r *refinement) enqueue(v int32) {
	j := int32(-1)
	if r.state[v] == free {
		j = r.target(v)
	}
	if j < 0 || !r.l.isSample(v) && r.of(v, j) <= 0 {
		r.queue.remove(v)
		return
	}
	r.queue.set(v, r.of(v, j))
}

// target returns the machine of v's greatest gain, the first among equals, or -1 if all are left
// out. The benefit is the same for all machines, so the least penalty decides.
func (r *refinement) target(v int32) int32 {
	best, least := int32(-1), int32(math.MaxInt32)
	for j, penalty := range r.penalties(v) {
		if int32(j) != r.part[v] && penalty < least && r.left[int(v)*r.words+j/64]>>(j%64)&1 == 0 {
			best, least = int32(j), penalty
		}
	}
	return best
}

// leaveOut excludes a move for the rest of the pass.
func (r *refinement) leaveOut(v, j int32) {
	r.left[int(v)*r.words+int(j)/64] |= 1 << (j % 64)
}

// feasible reports whether v may move to machine j. Parameters always may: they count towards
// neither samples nor theta.
func (r *refinement) feasible(v, j int32) bool {
	if !r.l.isSample(v) {
		return true
	}
	return r.load[j]+r.l.weight[v] <= r.limit[j] && r.fitsMemory(v, j) && !r.crowds(v, j)
}

// fitsMemory reports whether Eq. (2), |N(D_j)| <= theta, holds after the move of a sample.
func (r *refinement) fitsMemory(v, j int32) bool {
	if r.theta == math.MaxInt64 {
		return true
	}
	used := r.used[j]
	for _, e := range r.l.netsOf(v) {
		if r.samplesAt(e, j) == 0 {
			used += int64(r.l.netCost[e])
		}
	}
	return used <= r.theta
}

// samplesAt returns the number of samples of net e on machine i. The count of pins includes the
// parameter.
func (r *refinement) samplesAt(e, i int32) int32 {
	if r.part[r.l.paramOf(e)] == i {
		return r.at(e)[i] - 1
	}
	return r.at(e)[i]
}

// crowds reports whether the move would bring machine j's traffic far above the mean, so that all
// others would wait for it.
func (r *refinement) crowds(v, j int32) bool {
	var sum int64
	for _, t := range r.traffic {
		sum += t
	}
	ceiling := int64((1 + crowd) * float64(sum) / float64(r.k))
	traffic := r.traffic[j]
	if traffic+int64(r.penalties(v)[j]) <= ceiling {
		return false // nothing else can add to it
	}
	for _, e := range r.l.netsOf(v) {
		count, i := r.at(e), r.part[v]
		lambda := r.spread[e]
		after := lambda
		if count[i] == 1 {
			after--
		}
		if count[j] == 0 {
			after++
		}
		traffic += int64(r.l.netCost[e]) * (shares(count[j]+1, after) - shares(count[j], lambda))
	}
	return traffic > ceiling && traffic > r.traffic[j]
}

// carry moves v to machine j and updates loads and used parameters.
func (r *refinement) carry(v, j int32) {
	i := r.part[v]
	r.load[i] -= r.l.weight[v]
	r.load[j] += r.l.weight[v]
	if r.l.isSample(v) {
		for _, e := range r.l.netsOf(v) {
			if r.samplesAt(e, i) == 1 {
				r.used[i] -= int64(r.l.netCost[e])
			}
			if r.samplesAt(e, j) == 0 {
				r.used[j] += int64(r.l.netCost[e])
			}
		}
	}
	r.move(v, j)
}
