package page

import (
	"math"
	"math/rand/v2"
	"testing"
)

// loadsOneByOne counts what crosses machines' links where each worker uses values by
// chance, value by value, as the form has it.
func loadsOneByOne(c *FormCluster, home []int, uses [][]bool, of []int) (l FormLoads) {
	for form := range l {
		l[form] = make([]float64, len(c.Machines))
	}
	send := func(form Form, from, to int) {
		if from != to {
			l[form][from]++
			l[form][to]++
		}
	}
	var ring []int
	for m := range c.Machines {
		if c.Machines[m].Workers > 0 {
			ring = append(ring, m)
		}
	}
	for v, server := range home {
		used := map[int]bool{}
		for w, machine := range of {
			if !uses[w][v] {
				continue
			}
			send(FormServers, server, machine) // pulled
			send(FormServers, machine, server) // pushed
			if !used[machine] {
				used[machine] = true
				send(FormHostSums, server, machine)
				send(FormHostSums, machine, server)
			}
		}
		for _, from := range ring {
			for _, to := range ring {
				if used[from] {
					send(FormAllGather, from, to)
				}
			}
		}
		// The value's sum goes round once and comes round once, from wherever it begins.
		begin := v % len(ring)
		for hop := range 2 * (len(ring) - 1) {
			send(FormAllReduce, ring[(begin+hop)%len(ring)], ring[(begin+hop+1)%len(ring)])
		}
	}
	return l
}

// Machines of all kinds: with servers of different size or none, with workers or none.
func TestLoadsAreWhatIsCountedOneByOne(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	const values, steps = 6000, 12
	c := &FormCluster{Machines: []FormMachine{{Workers: 3}, {Workers: 1}, {Workers: 0}, {Workers: 2}}}
	share := []float64{0.5, 0, 0.4, 0.1}
	home := make([]int, values)
	for v := range home {
		for at := float64(v) / values; at >= share[home[v]]; home[v]++ {
			at -= share[home[v]]
		}
	}
	var of []int
	for m := range c.Machines {
		for range c.Machines[m].Workers {
			of = append(of, m)
		}
	}
	for _, alpha := range []float64{0.02, 0.4, 1} {
		var counted FormLoads
		for range steps {
			uses := make([][]bool, len(of))
			for w := range uses {
				uses[w] = make([]bool, values)
				for v := range uses[w] {
					uses[w][v] = random.Float64() < alpha
				}
			}
			l := loadsOneByOne(c, home, uses, of)
			counted.addLoads(&l)
		}
		held := make([]float64, len(share))
		for _, m := range home {
			held[m]++
		}
		want := c.Loads(held, alpha)
		for form := range FormCount {
			for m := range want[form] {
				got, want := counted[form][m]/steps, want[form][m]
				if near := 0.06*want + 0.001*values; math.Abs(got-want) > near {
					t.Errorf("alpha %v, %v, machine %d: %.0f values counted, %.0f calculated", alpha, form, m, got, want)
				}
			}
		}
	}
}

// Keys are at home as PS-lite divides them; machines without one hold nothing.
func TestHeld(t *testing.T) {
	c := &FormCluster{Machines: make([]FormMachine, 3), Servers: []int{2, 0}}
	const half = math.MaxUint64 / 2
	for _, tc := range []struct {
		first, last uint64
		want        []float64
	}{
		{0, 999, []float64{0, 0, 1}},
		{half, half + 10, []float64{1, 0, 0}},
		{half - 10, half + 29, []float64{0.75, 0, 0.25}},
		{0, math.MaxUint64, []float64{0.5, 0, 0.5}},
		{math.MaxUint64, math.MaxUint64, []float64{1, 0, 0}},
	} {
		for m, got := range c.held(tc.first, tc.last, 1) {
			if math.Abs(got-tc.want[m]) > 1e-9 {
				t.Errorf("keys %d to %d: machine %d has %v, want %v", tc.first, tc.last, m, got, tc.want[m])
			}
		}
	}
}

// Which machine is the busiest, which form takes the least, and whether sums are worth it
// depends on how long links take and not on bytes alone.
func TestSlowLinks(t *testing.T) {
	many := FormMachine{Workers: 4}
	for _, tc := range []struct {
		name    string
		cluster FormCluster
		alpha   float64
		busiest int // with servers
		least   Form
		chosen  Form
	}{
		{"links alike: the server's", FormCluster{Machines: []FormMachine{many, many, {Workers: 1}}, Servers: []int{1}}, 1, 1, FormAllReduce, FormHostSums},
		{"a slow link where one worker is: sums save nothing there",
			FormCluster{Machines: []FormMachine{{Workers: 4, Mbit: 1000}, {Workers: 4, Mbit: 1000}, {Workers: 1, Mbit: 50}}, Servers: []int{1}}, 0.01, 2, FormServers, FormServers},
		{"a slow link where four are",
			FormCluster{Machines: []FormMachine{{Workers: 4, Mbit: 50}, {Workers: 4, Mbit: 1000}, {Workers: 1, Mbit: 1000}}, Servers: []int{1}}, 1, 0, FormHostSums, FormHostSums},
		{"an unknown link is as the others are in the mean",
			FormCluster{Machines: []FormMachine{{Workers: 4}, {Workers: 4, Mbit: 1000}, {Workers: 1, Mbit: 3000}}, Servers: []int{1}}, 1, 1, FormAllReduce, FormHostSums},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ranges := []FormRange{{First: 0, Last: 99, Keys: 100}}
			rounds := make([]uint64, 9)
			for w := range rounds {
				rounds[w] = 100
				ranges[0].Uses = append(ranges[0].Uses, uint64(100*100*tc.alpha))
				ranges[0].Bytes = append(ranges[0].Bytes, uint64(4*100*100*tc.alpha))
			}
			figures, all := CompareForms(ranges, rounds, &tc.cluster)
			costs := figures[0].Costs
			if costs[FormServers].Machine != tc.busiest || costs.Least() != tc.least || costs.Chosen() != tc.chosen {
				t.Errorf("busiest %d, least %v, chosen %v: want %d, %v, %v; %+v", costs[FormServers].Machine, costs.Least(), costs.Chosen(), tc.busiest, tc.least, tc.chosen, costs)
			}
			if all.Costs != costs || all.Chosen != costs[tc.chosen] {
				t.Errorf("all ranges: %+v, the only one: %+v", all, figures[0])
			}
			if mbit := tc.cluster.Machines[tc.busiest].Mbit; mbit > 0 {
				if got, want := costs[FormServers].Seconds, costs[FormServers].Bytes*8/(mbit*1e6); math.Abs(got-want) > 1e-9*want {
					t.Errorf("%v s, want %v", got, want)
				}
			}
		})
	}
}

// The busiest machine of all ranges is the one of their sum: ranges that are on different
// servers do not add up to one that has both.
func TestAllRangesTogether(t *testing.T) {
	const half = math.MaxUint64 / 2
	c := &FormCluster{Machines: []FormMachine{{Workers: 1}, {}, {}}, Servers: []int{1, 2}}
	use := func(first uint64) FormRange {
		return FormRange{First: first, Last: first + 9, Keys: 10, Uses: []uint64{10}, Bytes: []uint64{40}}
	}
	sparse := use(half)
	sparse.Keys = 100 // alpha 0.1: not one range with its neighbour
	figures, all := CompareForms([]FormRange{use(0), sparse}, []uint64{1}, c)
	if len(figures) != 2 || all.Costs[FormServers].Machine != 0 || all.Costs[FormServers].Bytes != 160 {
		t.Errorf("%+v of %+v, want 160 bytes of machine 0", all.Costs[FormServers], figures)
	}
}
