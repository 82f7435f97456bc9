package page

import (
	"math"

	"github.com/psidecar/psidecar/planner/plan"
)

// A FormMachine is one that has workers or servers of a job.
type FormMachine struct {
	Name    string
	Workers int
	Mbit    float64 // speed of its link; 0: not known
}

// A FormCluster is where a job's workers and servers are.
type FormCluster struct {
	Machines []FormMachine
	// Servers has the machine of each server, by rank; empty: servers are taken to be on
	// all machines, with parameters spread evenly.
	Servers []int
}

// EvenCluster returns a cluster of that many machines, each with that many workers.
func EvenCluster(machines, each int) *FormCluster {
	c := &FormCluster{Machines: make([]FormMachine, machines)}
	for i := range c.Machines {
		c.Machines[i].Workers = each
	}
	return c
}

// Workers returns how many machines have workers, and the most that one has.
func (c *FormCluster) Workers() (machines, each int) {
	for i := range c.Machines {
		if n := c.Machines[i].Workers; n > 0 {
			machines, each = machines+1, max(each, n)
		}
	}
	return machines, each
}

// FormLoads are bytes of values that cross each machine's link in a step, sent and received, by
// form.
type FormLoads [FormCount][]float64

func (l *FormLoads) addLoads(other *FormLoads) {
	for form := range l {
		if l[form] == nil {
			l[form] = make([]float64, len(other[form]))
		}
		for m, bytes := range other[form] {
			l[form][m] += bytes
		}
	}
}

// A FormCost is what the busiest machine moves in a step: the one whose link takes the longest.
// Where no link's speed is known all are taken as equally fast.
type FormCost struct {
	Bytes   float64
	Seconds float64 // that its link takes; 0: not known
	Machine int
}

// time is what costs are compared by.
func (c FormCost) time() float64 {
	if c.Seconds > 0 {
		return c.Seconds
	}
	return c.Bytes
}

// FormCosts are those of each form.
type FormCosts [FormCount]FormCost

const (
	// rounding is how much less a form must cost to count as cheaper.
	rounding = 1e-9
	// leastSaved is what a range may cost at most with sums, beside without.
	leastSaved = 0.95
)

// Least returns the form that costs least.
func (c *FormCosts) Least() Form {
	best := FormServers
	for f := range FormCount {
		if c[f].time() < c[best].time()*(1-rounding) {
			best = f
		}
	}
	return best
}

// Chosen returns which of the forms that psidecar has is worth it: sums of hosts where they
// save a twentieth at least, or servers.
func (c *FormCosts) Chosen() Form {
	if c[FormHostSums].time() < leastSaved*c[FormServers].time() {
		return FormHostSums
	}
	return FormServers
}

// shared is the share of values that workers of a machine use together in a step, of which
// each uses alpha: as if they chose apart from each other. Workers that are given similar
// data use fewer, those of one that divides data well too.
func shared(alpha float64, workers int) float64 {
	if workers == 1 {
		return alpha
	}
	return -math.Expm1(float64(workers) * math.Log1p(-min(max(alpha, 0), 1))) // 1 - (1 - alpha)^workers, of small ones too
}

// Costs returns what values of that many bytes cost that are spread evenly, of which a worker
// uses the share alpha in a step.
func (c *FormCluster) Costs(bytes, alpha float64) FormCosts {
	even := FormCluster{Machines: c.Machines}
	loads := c.Loads(even.held(0, math.MaxUint64, bytes), alpha)
	return c.Busiest(&loads)
}

// Loads returns what each machine moves for values of which its servers have that many bytes,
// and of which a worker uses the share alpha in a step: Table 3 of the paper, with as many
// workers and servers as each machine has.
func (c *FormCluster) Loads(held []float64, alpha float64) (l FormLoads) {
	for form := range l {
		l[form] = make([]float64, len(c.Machines))
	}
	bytes, workers, sums, machines := 0.0, 0.0, 0.0, 0.0
	for m, has := range held {
		bytes += has
		if n := c.Machines[m].Workers; n > 0 {
			workers, sums, machines = workers+float64(n), sums+shared(alpha, n), machines+1
		}
	}
	for m, has := range held {
		n, sum := float64(c.Machines[m].Workers), 0.0
		if n > 0 {
			sum = shared(alpha, c.Machines[m].Workers)
			l[FormAllReduce][m] = 4 * bytes * (machines - 1) / machines
			l[FormAllGather][m] = bytes * (sum*(machines-1) + sums - sum)
		}
		// To and from servers elsewhere, and as a server from and to workers elsewhere.
		l[FormServers][m] = 2 * alpha * (n*(bytes-has) + has*(workers-n))
		l[FormHostSums][m] = 2 * (sum*(bytes-has) + has*(sums-sum))
	}
	return l
}

// Busiest returns what the busiest machine moves in each form.
func (c *FormCluster) Busiest(l *FormLoads) (costs FormCosts) {
	for form := range l {
		costs[form] = c.busiest(l[form])
	}
	return costs
}

// busiest returns what that machine moves whose link takes the longest. A link whose speed
// is not known is taken to be as the others are in the mean.
func (c *FormCluster) busiest(bytes []float64) (most FormCost) {
	sum, known := 0.0, 0
	for i := range c.Machines {
		if mbit := c.Machines[i].Mbit; mbit > 0 {
			sum, known = sum+mbit, known+1
		}
	}
	for m, b := range bytes {
		next := FormCost{Bytes: b, Machine: m}
		if known > 0 {
			mbit := c.Machines[m].Mbit
			if mbit == 0 {
				mbit = sum / float64(known)
			}
			next.Seconds = b * 8 / (mbit * 1e6)
		}
		if m == 0 || next.time() > most.time()*(1+rounding) {
			most = next
		}
	}
	return most
}

// held returns how many bytes of values in a range of keys each machine's servers have:
// those at home there, with keys spread evenly over the range.
func (c *FormCluster) held(first, last uint64, bytes float64) []float64 {
	held := make([]float64, len(c.Machines))
	if len(c.Servers) == 0 {
		for m := range held {
			held[m] = bytes / float64(len(held))
		}
		return held
	}
	n := len(c.Servers)
	keys := float64(last-first) + 1
	for rank := plan.HomeOf(first, n); rank <= plan.HomeOf(last, n); rank++ {
		home := plan.HomeRange(rank, n)
		from, to := max(first, home.First), min(last, home.Last)
		held[c.Servers[rank]] += bytes * (float64(to-from) + 1) / keys
	}
	return held
}
