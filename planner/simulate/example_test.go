package simulate_test

import (
	"fmt"

	"github.com/psidecar/psidecar/planner/simulate"
)

// Worker 1 pulls and pushes a key of machine 0's in every step. With every key at
// home each use crosses the network; locality moves the key once.
func Example() {
	s, err := simulate.New(simulate.Options{
		Machine: []int{0, 1}, Machines: 2, EpochSteps: 10, KeyBytes: 8, Strategies: []string{"home", "locality"},
		Home: func(uint64) int32 { return 0 },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for step := range 100 {
		for worker := range 2 {
			err := s.Add(&simulate.Request{Worker: worker, Step: step, Push: true, Pull: true, Keys: []uint64{uint64(worker)}, Size: 400})
			if err != nil {
				fmt.Println(err)
				return
			}
		}
	}
	for _, r := range s.Results() {
		fmt.Printf("%s: the busiest machine moves %.0f bytes\n", r.Strategy, r.Sum.Busiest)
	}
	// Output:
	// home: the busiest machine moves 81600 bytes
	// locality: the busiest machine moves 416 bytes
}
