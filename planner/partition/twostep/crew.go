package twostep

import (
	"runtime"
	"sync"
)

// A crew runs a function for each machine, again and again, on all cores. The function gets the
// number of the worker on which it runs, from 0, for scratch memory. The caller of each is worker
// 0. stop must be called, or the goroutines leak.
type crew struct {
	machines int
	// One for each goroutine.
	rounds []chan func(worker, machine int)
	done   sync.WaitGroup
	ended  sync.WaitGroup
}

// newCrew starts the goroutines, at most one per core and per machine.
func newCrew(machines int) *crew {
	c := &crew{machines: machines}
	workers := min(runtime.GOMAXPROCS(0), machines)
	for w := 1; w < workers; w++ { // the caller is worker 0
		rounds := make(chan func(worker, machine int), 1)
		c.rounds = append(c.rounds, rounds)
		c.ended.Go(func() {
			for do := range rounds {
				c.share(w, workers, do)
				c.done.Done()
			}
		})
	}
	return c
}

func (c *crew) workers() int { return len(c.rounds) + 1 }

// share runs do for every workers-th machine, beginning with machine w.
func (c *crew) share(w, workers int, do func(worker, machine int)) {
	for i := w; i < c.machines; i += workers {
		do(w, i)
	}
}

// each runs do once for each machine and returns when all calls have.
func (c *crew) each(do func(worker, machine int)) {
	c.done.Add(len(c.rounds))
	for _, r := range c.rounds {
		r <- do
	}
	c.share(0, c.workers(), do)
	c.done.Wait()
}

// stop ends the goroutines and waits for them.
func (c *crew) stop() {
	for _, r := range c.rounds {
		close(r)
	}
	c.ended.Wait()
}
