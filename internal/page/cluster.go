package page

import (
	"math"

	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// A FormMachine is a machine with workers or servers of a job.
type FormMachine struct {
	Name    string
	Workers int
	Mbit    float64 // speed of its link; 0: unknown
}

// A FormCluster says where a job's workers and servers are.
type FormCluster struct {
	Machines []FormMachine
	// Servers has the machine of each server, by rank; empty: servers are assumed on all
	// machines, with parameters spread evenly.
	Servers []int
}

// EvenCluster returns a cluster of machines with each workers on every one.
func EvenCluster(machines, each int) *FormCluster {
	c := &FormCluster{Machines: make([]FormMachine, machines)}
	for i := range c.Machines {
		c.Machines[i].Workers = each
	}
	return c
}

// Workers returns how many machines have workers, and the largest number on one machine.
func (c *FormCluster) Workers() (machines, each int) {
	for i := range c.Machines {
		if n := c.Machines[i].Workers; n > 0 {
			machines, each = machines+1, max(each, n)
		}
	}
	return machines, each
}

// FormLoads are the bytes of values that cross each machine's link in a step, sent and received
// together, by form and machine.
type FormLoads [FormCount][]float64

// addLoads adds the loads of another range, machine by machine.
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

// A FormCost is what the busiest machine moves in a step: the one whose link takes longest. If
// no link's speed is known, all links are assumed equally fast.
type FormCost struct {
	Bytes   float64
	Seconds float64 // time on its link; 0: unknown
	Machine int     // its index
}

// time is the figure by which costs are compared. Either all costs of a cluster have seconds or
// none.
func (c FormCost) time() float64 {
	if c.Seconds > 0 {
		return c.Seconds
	}
	return c.Bytes
}

// FormCosts are the costs of each form.
type FormCosts [FormCount]FormCost

const (
	// rounding is the relative difference below which two costs count as equal.
	rounding = 1e-9
	// leastSaved is the most that a range may cost with sums, relative to servers, for sums to
	// be proposed: they have costs of their own, such as waiting for the host's other workers.
	leastSaved = 0.95
)

// Least returns the form that costs least; of equal ones the first.
func (c *FormCosts) Least() Form {
	best := FormServers
	for f := range FormCount {
		if c[f].time() < c[best].time()*(1-rounding) {
			best = f
		}
	}
	return best
}

// Chosen returns the form to propose among those that psidecar implements: host sums if they
// save at least a twentieth, else servers.
func (c *FormCosts) Chosen() Form {
	if c[FormHostSums].time() < leastSaved*c[FormServers].time() {
		return FormHostSums
	}
	return FormServers
}

// shared returns the fraction of values that at least one of a machine's workers uses in a
// step, if each uses alpha and they choose independently: 1 - (1 - alpha)^workers. Workers with
// similar data use fewer values together, and so do those of a data division by psidecar
// partition.
func shared(alpha float64, workers int) float64 {
	if workers == 1 {
		return alpha
	}
	return -math.Expm1(float64(workers) * math.Log1p(-min(max(alpha, 0), 1))) // precise for small alpha too
}

// Costs returns the costs of values that are spread evenly over all machines. bytes is their
// size, alpha the fraction that a worker uses in a step.
func (c *FormCluster) Costs(bytes, alpha float64) FormCosts {
	even := FormCluster{Machines: c.Machines}
	loads := c.Loads(even.held(0, math.MaxUint64, bytes), alpha)
	return c.Busiest(&loads)
}

// Loads returns what each machine moves in a step. held is how many bytes of the values the
// servers of each machine have, alpha the fraction of them that a worker uses. It is Table 3 of
// the paper, generalized to any number of workers and servers on each machine.
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
			// The fraction that the machine's workers use together, which host sums and
			// all-gather move once.
			sum = shared(alpha, c.Machines[m].Workers)
			l[FormAllReduce][m] = 4 * bytes * (machines - 1) / machines
			l[FormAllGather][m] = bytes * (sum*(machines-1) + sums - sum)
		}
		// The machine's workers exchange values with servers elsewhere, and its servers with
		// workers elsewhere. The factor 2 is for both directions.
		l[FormServers][m] = 2 * alpha * (n*(bytes-has) + has*(workers-n))
		l[FormHostSums][m] = 2 * (sum*(bytes-has) + has*(sums-sum))
	}
	return l
}

// Busiest returns the cost of each form: the load of its busiest machine.
func (c *FormCluster) Busiest(l *FormLoads) (costs FormCosts) {
	for form := range l {
		costs[form] = c.busiest(l[form])
	}
	return costs
}

// busiest returns the load of the machine whose link takes longest. A link of unknown speed is
// assumed to have the mean speed of the others.
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

// held returns how many bytes of the values in a range of keys are on each machine's servers,
// if every key is at home and keys are spread evenly over the range.
func (c *FormCluster) held(first, last uint64, bytes float64) []float64 {
	held := make([]float64, len(c.Machines))
	if len(c.Servers) == 0 {
		for m := range held {
			held[m] = bytes / float64(len(held))
		}
		return held
	}
	keys := float64(last-first) + 1
	// PS-lite divides the key space among servers evenly, so a range of keys may span several
	// homes. The last server's includes the few keys that are left over.
	for rank, machine := range c.Servers {
		from, end := pslite.KeyRange(rank, len(c.Servers))
		to := end - 1
		if rank == len(c.Servers)-1 {
			to = math.MaxUint64
		}
		if from, to = max(first, from), min(last, to); from <= to {
			held[machine] += bytes * (float64(to-from) + 1) / keys
		}
	}
	return held
}
