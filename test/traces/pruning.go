package traces

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/psidecar/psidecar/cmd/psjob/model"
	"github.com/psidecar/psidecar/internal/recording"
	"github.com/psidecar/psidecar/planner/dataset"
)

// Pruning is the training of a small net on pictures while it is pruned (DW23 section
// 6.1): after each snapshot the weights nearest to zero are dropped for good. A
// worker pulls the parameters that are left and that its batch needs (a pixel that is
// black in all its pictures needs no weights), and pushes those whose gradient
// exceeds epsilon. Every weight is a key. So which keys are used changes with
// training, and differs between workers as their pictures do.
type Pruning struct {
	Workers, Servers int
	Pictures         *model.Images
	Hidden           int
	Batch            int
	Snapshots        int
	Rounds           int     // steps of each worker between two prunings
	Sparsity         float64 // share of the weights that is dropped in the end
	Epsilon          float64 // relative to the root mean square of a gradient
	// Own is the share of a worker's pictures that are of its own classes; the others
	// are of any class.
	Own          float64
	LearningRate float64
	Seed         uint64
}

// A PruningReport says what became of the net.
type PruningReport struct {
	Parameters int       `json:"parameters"`
	Left       []int     `json:"left"`     // parameters, by snapshot
	Accuracy   []float64 `json:"accuracy"` // in training, by snapshot
}

// check returns the first fault of the numbers, in the names of the flags.
func (p *Pruning) check() error {
	for name, v := range map[string]int{"workers": p.Workers, "servers": p.Servers, "hidden": p.Hidden, "batch": p.Batch, "snapshots": p.Snapshots, "rounds": p.Rounds} {
		if v < 1 {
			return fmt.Errorf("--%s %d: want 1 or more", name, v)
		}
	}
	if p.Sparsity < 0 || p.Sparsity >= 1 || p.Own < 0 || p.Own > 1 || p.Epsilon < 0 || !(p.LearningRate > 0) {
		return fmt.Errorf("--sparsity %v, --own %v, --epsilon %v, --learning-rate %v: want sparsity in [0, 1), own in [0, 1], epsilon 0 or more and a positive rate",
			p.Sparsity, p.Own, p.Epsilon, p.LearningRate)
	}
	return nil
}

// Trace returns the job's uses. It trains while they are read, and the report grows
// with every snapshot.
func (p Pruning) Trace(report *PruningReport) (Trace, error) {
	if err := p.check(); err != nil {
		return nil, err
	}
	return func(each func(*recording.Use) error) error {
		n, err := p.newNet()
		if err != nil {
			return err
		}
		*report = PruningReport{Parameters: len(n.keys)}
		e := newEmitter(p.Workers, p.Servers, 4, each)
		for snapshot := range p.Snapshots {
			var tally model.Tally
			for range p.Rounds {
				if err := n.round(e, &tally); err != nil {
					return err
				}
			}
			report.Accuracy = append(report.Accuracy, tally.Accuracy())
			report.Left = append(report.Left, n.left)
			// Gradual pruning: fast at first, then ever more slowly.
			done := float64(snapshot+1) / float64(p.Snapshots)
			n.prune(p.Sparsity * (1 - math.Pow(1-done, 3)))
		}
		return nil
	}, nil
}

// prunedNet is the net in training. Lists of parameters are in the order of the keys.
// Training runs in one goroutine: the trace stands for workers that compute at the
// same time, and must be the same in each run.
type prunedNet struct {
	Pruning
	model   *model.Image
	random  *rand.Rand
	shares  [][]int32 // pictures of each worker
	keys    []uint64
	pixels  []int // by key, see model.Image.Inputs
	initial []float32
	change  []float32 // of each value since the start: what a server would store
	sum     []float32 // of the workers' gradients
	dropped []bool
	left    int
}

// newNet makes the net with a key for each of its parameters.
func (p *Pruning) newNet() (*prunedNet, error) {
	key := func(id uint64) (uint64, error) { return dataset.Spread(id), nil }
	m, err := model.NewImage(p.Pictures, []int{p.Hidden}, 1, p.Seed, key)
	if err != nil {
		return nil, err
	}
	n := &prunedNet{Pruning: *p, model: m, random: rand.New(rand.NewPCG(p.Seed, 0x9e)), keys: m.Groups(nil)[0].Keys,
		pixels: m.Inputs(), initial: m.Initial()}
	n.left = len(n.keys)
	n.change, n.sum, n.dropped = make([]float32, n.left), make([]float32, n.left), make([]bool, n.left)
	n.share()
	return n, nil
}

// share deals the pictures out, with repetitions. A worker's own classes are a run of
// the ten that wraps around. With pictures of a few classes it uses other pixels than
// its neighbours, and so other weights: that is the locality which placement looks
// for.
func (n *prunedNet) share() {
	var byClass [model.Classes][]int32
	for i := range n.Pictures.Len() {
		byClass[n.Pictures.Label(i)] = append(byClass[n.Pictures.Label(i)], int32(i))
	}
	each := n.Pictures.Len() / n.Workers
	for w := range n.Workers {
		var own []int32
		for c := w * model.Classes / n.Workers; c < max((w+1)*model.Classes/n.Workers, w*model.Classes/n.Workers+1); c++ {
			own = append(own, byClass[c]...)
		}
		share := make([]int32, max(each, 1))
		for i := range share {
			if n.random.Float64() < n.Own && len(own) > 0 {
				share[i] = own[n.random.IntN(len(own))]
			} else {
				share[i] = int32(n.random.IntN(n.Pictures.Len()))
			}
		}
		n.shares = append(n.shares, share)
	}
}

// round is one step of all workers: each pulls and pushes what it needs, and the sum
// of the gradients is applied at the end, as bulk-synchronous training does. The net
// is one for all: parameters that a worker does not pull are in its params, too, but
// have no effect on its pictures.
func (n *prunedNet) round(e *emitter, tally *model.Tally) error {
	clear(n.sum)
	params, grads := make([]float32, len(n.keys)), make([]float32, len(n.keys))
	// Pixels that any picture of the batch has: only their weights have a gradient.
	lit := make([]bool, n.Pictures.Pixels())
	var pixels []float32
	for w, share := range n.shares {
		batch := make([]int32, n.Batch)
		clear(lit)
		for i := range batch {
			batch[i] = share[n.random.IntN(len(share))]
			pixels = n.Pictures.Append(pixels[:0], int(batch[i]))
			for at, v := range pixels {
				lit[at] = lit[at] || v > 0
			}
		}
		var pulled, pushed []uint64
		for i, key := range n.keys {
			// Biases and later layers have no pixel: every worker needs them.
			if !n.dropped[i] && (n.pixels[i] < 0 || lit[n.pixels[i]]) {
				pulled = append(pulled, key)
			}
		}
		// The model changes what it is given.
		copy(params, n.change)
		clear(grads)
		n.model.Gradient(batch, [][]float32{params}, [][]float32{grads}, tally)
		// The bound follows the gradients as they get smaller in training.
		square := 0.0
		for _, g := range grads {
			square += float64(g) * float64(g)
		}
		epsilon := float32(n.Epsilon * math.Sqrt(square/float64(len(grads))))
		for i, g := range grads {
			if n.dropped[i] || n.pixels[i] >= 0 && !lit[n.pixels[i]] || g <= epsilon && g >= -epsilon {
				continue
			}
			pushed = append(pushed, n.keys[i])
			n.sum[i] += g
		}
		if err := e.request(w, false, pulled); err != nil {
			return err
		}
		if err := e.request(w, true, pushed); err != nil {
			return err
		}
	}
	// Applied once all workers have computed theirs with the same parameters.
	step := float32(n.LearningRate) / float32(n.Batch*n.Workers)
	for i, g := range n.sum {
		n.change[i] -= step * g
	}
	return nil
}

// prune drops the parameters nearest to zero until that share of all is dropped;
// earlier drops count and stay. A dropped parameter is zero: its change is minus its
// initial value. Ties are broken by the order of the keys, so that a seed gives one
// trace.
func (n *prunedNet) prune(share float64) {
	var alive []int
	for i := range n.keys {
		if !n.dropped[i] {
			alive = append(alive, i)
		}
	}
	// By the parameter's value, not by its change: initial values count.
	size := func(i int) float64 { return math.Abs(float64(n.initial[i] + n.change[i])) }
	slices.SortFunc(alive, func(a, b int) int { return cmp.Or(cmp.Compare(size(a), size(b)), cmp.Compare(a, b)) })
	for _, i := range alive[:max(0, min(len(alive), int(share*float64(len(n.keys)))-(len(n.keys)-len(alive))))] {
		n.dropped[i] = true
		n.change[i] = -n.initial[i]
		n.left--
	}
}
