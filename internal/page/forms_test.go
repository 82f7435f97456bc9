package page

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var nearly = cmpopts.EquateApprox(1e-9, 0)

// Table 3 of the paper: w bytes, N machines, a worker each.
func TestCostsAreThoseOfTable3(t *testing.T) {
	const w, n, alpha = 1000.0, 8, 0.05
	want := FormCosts{
		FormServers:   {Bytes: 4 * alpha * w * (n - 1) / n},
		FormHostSums:  {Bytes: 4 * alpha * w * (n - 1) / n}, // one worker: as servers
		FormAllReduce: {Bytes: 4 * w * (n - 1) / n},
		FormAllGather: {Bytes: 2 * alpha * w * (n - 1)},
	}
	got := EvenCluster(n, 1).Costs(w, alpha)
	for form := range want {
		want[form].Machine = got[form].Machine // they are alike
	}
	if diff := cmp.Diff(want, got, nearly); diff != "" {
		t.Error(diff)
	}
	if got.Least() != FormServers {
		t.Errorf("least is %v, want servers", got.Least())
	}
}

func TestFormThatMovesLeast(t *testing.T) {
	for _, c := range []struct {
		name    string
		cluster *FormCluster
		alpha   float64
		want    Form
	}{
		{"sparse, a worker each", EvenCluster(8, 1), 0.01, FormServers},
		{"sparse, four workers each", EvenCluster(8, 4), 0.3, FormHostSums},
		{"dense, a worker each: as much by servers that are spread evenly", EvenCluster(8, 1), 1, FormServers},
		{"dense, four workers each: a sum a host is what a ring moves", EvenCluster(8, 4), 1, FormHostSums},
		{"two machines, sparse: gathering goes one way", EvenCluster(2, 4), 0.01, FormHostSums},
		{"one machine", EvenCluster(1, 4), 0.5, FormServers},
	} {
		costs := c.cluster.Costs(1e6, c.alpha)
		if got := costs.Least(); got != c.want {
			t.Errorf("%s: %v, want %v; %v", c.name, got, c.want, costs)
		}
	}
}

// What comes of counts is what a worker used in its steps, step by step.
func TestAlphaIsTheMeanOfSteps(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	const workers, dense, sparse, steps, width = 3, 40, 4000, 50, 4
	ranges := []FormRange{
		{First: 0, Last: dense - 1, Keys: dense, Uses: make([]uint64, workers), Bytes: make([]uint64, workers)},
		{First: dense, Last: dense + sparse/2 - 1, Keys: sparse / 2, Uses: make([]uint64, workers), Bytes: make([]uint64, workers)},
		{First: dense + sparse/2, Last: math.MaxUint64, Keys: sparse / 2, Uses: make([]uint64, workers), Bytes: make([]uint64, workers)},
	}
	rounds := make([]uint64, workers)
	share, number := 0.0, 0
	use := func(w, key int, bytes uint64) {
		r := &ranges[0]
		if key >= dense {
			r = &ranges[1+min((key-dense)/(sparse/2), 1)]
		}
		r.Uses[w]++
		r.Bytes[w] += bytes
	}
	for w := range workers {
		for range steps + 10*w {
			rounds[w]++
			for key := range dense {
				use(w, key, 8)
			}
			used := 0
			for key := range sparse {
				if random.IntN(50) == 0 {
					use(w, dense+key, 4*width)
					used++
				}
			}
			share += float64(used) / sparse / float64(steps+10*w) / workers
			number += used
		}
	}
	figures, all := CompareForms(ranges, rounds, EvenCluster(3, 1))
	want := []FormFigure{
		{First: 0, Last: dense - 1, Keys: dense, Bytes: 8 * dense, Alpha: 1},
		{First: dense, Last: math.MaxUint64, Keys: sparse, Bytes: 4 * width * sparse, Alpha: share},
	}
	for i := range want {
		want[i].Costs = EvenCluster(3, 1).Costs(want[i].Bytes, want[i].Alpha)
		want[i].Chosen = want[i].Costs[FormServers] // no machine has two workers
	}
	if diff := cmp.Diff(want, figures, nearly, cmpopts.IgnoreUnexported(FormFigure{}), cmpopts.IgnoreFields(FormCost{}, "Machine")); diff != "" {
		t.Fatal(diff)
	}
	model := (8*dense*1 + 4*width*sparse*share) / (8*dense + 4*width*sparse)
	if math.Abs(all.Alpha-model) > 1e-9 || all.Keys != dense+sparse {
		t.Errorf("alpha of the model %v of %d keys, want %v of %d", all.Alpha, all.Keys, model, dense+sparse)
	}
	if number == 0 {
		t.Fatal("nothing was used")
	}
}

func TestNobodyPushes(t *testing.T) {
	figures, all := CompareForms([]FormRange{{Keys: 3, Uses: []uint64{0}, Bytes: []uint64{0}}}, []uint64{5}, EvenCluster(2, 1))
	if len(figures) > 0 || all.Alpha != 0 {
		t.Errorf("%v, %v", figures, all)
	}
}

// Workers that push each key by itself have a timestamp for each; their steps are those of
// the key that they push most.
func TestRounds(t *testing.T) {
	got := PushRounds([]uint64{100, 5000, 0, 7}, []uint64{100 * 300, 5000, 0, 7}, []uint64{100, 50, 0, 9})
	if diff := cmp.Diff([]uint64{100, 50, 0, 7}, got); diff != "" {
		t.Error(diff)
	}
}
