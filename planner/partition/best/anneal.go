package best

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/psidecar/psidecar/internal/splitmix"
)

// longestChunk is how many vertices are visited in succession at most. Vertices are in random
// order, so a chunk is as good as a random choice, and it is read from memory sequentially.
const longestChunk = 32

// visitWork is the cost of a visit apart from its pins and blocks, in pins.
const visitWork = 16

// A proposal is the block that a vertex has drawn, if it is another than its own.
type proposal struct {
	v, to int32
	// The weight of the nets that would be new to block to.
	fresh float32
}

// An annealer improves a state by sweeps over all vertices. A sweep is a sequence of batches. In a
// batch the members of the team first find in parallel, from the state as it was before the batch,
// where each vertex would like to be (propose). Then, on one goroutine, it is decided which of
// these moves the limits allow (settleAll). Then the members carry the moves out in parallel, each
// updating nets of its own (applyMoves). So the result does not depend on the number of members.
type annealer[T word] struct {
	*state[T]
	limits
	*tariff
	team   *team
	noise  noise
	seed   uint64
	sweeps uint64
	chunk  int // vertices per chunk
	// The chunks in the order of visits; each sweep shuffles that of the one before.
	order  []int32
	shares *shares // of the nets, for the updates
	// By block, the weight that wanted to enter and to leave it in this sweep.
	in, out []float64
	// The fraction of the weight that wanted to move in the last sweep.
	wish float64
	// By block, its estimated load.
	load []float64
	// By block, 1 / share.
	perShare []float64
	members  []member[T]
	settler  settler
	// nil if there is no earlier assignment.
	stays *stays
	// The work done so far, in pins looked at.
	work int64
}

// limits are what blocks may hold and should carry.
type limits struct {
	// By block, the largest weight of vertices.
	size []int64
	// By block, its share of the traffic by link speed; the sum is 1.
	share []float64
	// The largest weight of nets that a block may use; 0 for no bound.
	theta int64
}

// A member is what one goroutine of the team writes to, padded to cache lines of its own.
type member[T word] struct {
	_         [64]byte
	planes    planes[T]
	hits      []float32
	proposals []proposal
	costs     costs
	work      int64
	_         [64]byte
}

// newAnnealer returns an annealer of s, which it changes. The tariff is shared with later levels.
func newAnnealer[T word](s *state[T], l limits, f *tariff, t *team, seed uint64) *annealer[T] {
	n := s.h.vertices()
	chunk := max(1, min(longestChunk, n/64))
	a := &annealer[T]{
		state: s, limits: l, tariff: f, team: t, seed: seed, chunk: chunk,
		noise:  newNoise(rand.New(rand.NewPCG(seed, 1)), s.k),
		order:  make([]int32, (n+chunk-1)/chunk),
		shares: newShares(s.h, t.members),
		in:     make([]float64, s.k), out: make([]float64, s.k),
		load: make([]float64, s.k), perShare: make([]float64, s.k),
		members: make([]member[T], t.members),
		settler: newSettler(s.k),
	}
	for c := range a.order {
		a.order[c] = int32(c)
	}
	for b, share := range l.share {
		a.perShare[b] = 1 / share
	}
	for i := range a.members {
		m := &a.members[i]
		m.hits = make([]float32, s.k+32)[16 : 16+s.k] // on cache lines of its own
		m.costs = newCosts(s.k)
	}
	return a
}

// batch returns the number of chunks that decide without seeing each other: few enough vertices to
// be nearly independent, and enough to occupy the team.
func (a *annealer[T]) batch() int {
	return max(1, min(4096, a.h.vertices()/16)/a.chunk)
}

// sweep visits every vertex once at temperature temp, which is above 0. It ends early with
// ctx.Err() if ctx does; the state is consistent then too.
func (a *annealer[T]) sweep(ctx context.Context, temp float64) error {
	a.shuffle()
	for chunks := range slices.Chunk(a.order, a.batch()) {
		if err := ctx.Err(); err != nil {
			return err
		}
		a.team.runAll(func(i int) {
			a.propose(&a.members[i], part(chunks, i, a.team.members), float32(temp))
		})
		// One goroutine: the limits couple all decisions of the batch.
		a.settleAll()
		a.applyMoves()
		a.adjustPrices(float64(len(chunks)) / float64(len(a.order)))
	}
	a.shares.adjust()
	if a.sweeps++; a.sweeps%loadEvery == 0 {
		a.raisePrices(loadEvery * loadGain)
	}
	a.wish = 0
	for _, w := range a.in {
		a.wish += w
	}
	a.wish /= float64(max(1, sum(a.state.size)))
	a.adjustRents(temp)
	return nil
}

// part returns the i-th of n about equal parts of list.
func part[E any](list []E, i, n int) []E { return list[len(list)*i/n : len(list)*(i+1)/n] }

// propose collects in m the proposals of the vertices in chunks. It only reads the state. The
// random number of a vertex depends on seed, sweep and vertex alone.
func (a *annealer[T]) propose(m *member[T], chunks []int32, temp float32) {
	m.proposals = m.proposals[:0]
	// Random numbers are a function of vertex and sweep, so they do not depend on which member
	// visits the vertex.
	salt := a.seed + a.sweeps*splitmix.Golden
	for _, c := range chunks {
		first := int(c) * a.chunk
		last := min(first+a.chunk, a.h.vertices())
		m.work += int64(a.h.start[last]-a.h.start[first]) + int64((last-first)*(visitWork+a.k))
		for v := first; v < last; v++ {
			if a.h.home != nil && a.h.home[v] >= 0 || a.stays.holds(v) {
				continue
			}
			p := a.choose(m, v, temp, splitmix.Mix(salt+uint64(v)*0xd1342543de82ef95))
			if p.to != a.block[v] {
				m.proposals = append(m.proposals, p)
			}
		}
	}
}

// choose draws the block of vertex v from the heat bath: block b has a probability proportional to
// exp(-cost(b)/temp), which the Gumbel trick turns into a minimum over costs with noise.
func (a *annealer[T]) choose(m *member[T], v int, temp float32, random uint64) proposal {
	sum := a.hits(v, &m.planes, m.hits)
	was, stay := a.block[v], float32(0)
	if a.stays != nil && a.stays.was[v] >= 0 {
		was, stay = a.stays.was[v], a.stays.price
	}
	// To stay where the earlier assignment has it counts like a shared net.
	m.hits[was] += stay
	noise := a.noise[random%noiseSize:][:len(m.hits)]
	price := a.price[:len(m.hits)]
	rent := a.rent[:len(m.hits)]
	weight := float32(a.h.weight[v])
	least, at := float32(math.Inf(1)), a.block[v]
	for b, hit := range m.hits {
		if cost := price[b]*(sum-hit) + weight*rent[b] - temp*noise[b]; cost < least {
			least, at = cost, int32(b)
		}
	}
	m.hits[was] -= stay
	return proposal{int32(v), at, sum - m.hits[at]}
}

// applyMoves carries out the moves that were settled. A vertex moves at most once in a batch, so
// the moves commute.
func (a *annealer[T]) applyMoves() {
	moves := a.settler.moves
	if len(moves) == 0 {
		return
	}
	a.team.runAll(func(i int) {
		a.shares.runMember(i, func(from, to uint32) {
			for _, p := range moves {
				a.moveRow(int(p.v), int(a.block[p.v]), int(p.to), from, to, &a.members[i].costs)
			}
		})
	})
	for i := range a.members {
		a.cost.drainFrom(&a.members[i].costs)
	}
	for _, p := range moves {
		from := int(a.block[p.v])
		a.work += 2 * int64(len(a.h.row(int(p.v))))
		// Last, because moveRow reads the block that the vertex leaves.
		a.shift(int(p.v), from, int(p.to))
	}
}

// shuffle orders the chunks for the next sweep. The order depends on that of the sweep before and
// on the sweep's number.
func (a *annealer[T]) shuffle() {
	rng := rand.New(rand.NewPCG(a.seed, a.sweeps+2))
	rng.Shuffle(len(a.order), func(i, j int) { a.order[i], a.order[j] = a.order[j], a.order[i] })
}
