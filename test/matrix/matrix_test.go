// Package matrix runs every way of using PS-lite under every measure of psidecar, on one fleet:
// patterns are in the package pattern, measures in measures_test.go. Each pair ends with the values
// that the pattern has without psidecar, bit for bit, or the measure is off for it with a reason that
// status and plan show print. What came of each pair is in docs/matrix.md, which the test writes with
// -update and compares otherwise.
package matrix

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/psidecar/psidecar/proxy"
	"github.com/psidecar/psidecar/test/matrix/pattern"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	update = flag.Bool("update", false, "write the table in docs/matrix.md")
	only   = flag.String("only", "", "only pairs whose MEASURE/PATTERN this regular expression matches")
	seed   = flag.Uint64("seed", 0, "order of the pairs; 0: any")
)

// Every pattern under every measure, in an order that the seed gives; with -short every tenth pair, and of those that
// take long every third without.
func TestMatrix(t *testing.T) {
	f := newFleet(t)
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", *seed)
	some := regexp.MustCompile(*only)
	rng := rand.New(rand.NewPCG(*seed, 1))
	patterns, measures := pattern.All(), f.measures()
	var looking sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	defer looking.Wait()
	defer stop()
	f.states.Store(&[]proxy.State{})
	looking.Go(func() { f.look(ctx) })
	var of table
	of.cells = map[[2]string]string{}
	order := slices.Clone(measures)
	rng.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	// Those that leave keys displaced come last: proxies after them go on routing, and refuse to bypass the mesh.
	slices.SortStableFunc(order, func(a, b *setting) int {
		return cmp.Compare(fmt.Sprint(a.meshOnly()), fmt.Sprint(b.meshOnly()))
	})
	for _, m := range order {
		var pairs []*pair
		for i, p := range patterns {
			at := slices.Index(measures, m)
			if (i+3*at+int(*seed%120))%m.oneIn() != 0 || !some.MatchString(m.name+"/"+p.Name) || m.without != nil && m.without(p) {
				continue
			}
			pairs = append(pairs, &pair{fleet: f, Pattern: p, measure: m, rng: rand.New(rand.NewPCG(*seed, uint64(100*at+i))), counted: map[string]uint64{}})
		}
		if len(pairs) == 0 {
			continue
		}
		rng.Shuffle(len(pairs), func(i, j int) { pairs[i], pairs[j] = pairs[j], pairs[i] })
		t.Run(m.name, func(t *testing.T) {
			f.over(t)
			f.folder = f.t.TempDir()
			var g sync.WaitGroup
			for i, p := range f.proxies {
				g.Go(func() { p.Replace(f.args(i, m.flags)...) })
			}
			g.Wait()
			for i, x := range pairs {
				g.Go(func() {
					group := <-f.groups
					defer func() { f.groups <- group }()
					began := time.Now()
					err := x.run(t.Context(), group, 10_000+100*slices.Index(measures, m)+i)
					if t.Logf("%s: %s after %.1f s, %d keys moved %s", x.Name, x.cell, time.Since(began).Seconds(), x.moved, x.why); err != nil {
						t.Errorf("%s, %s: %v", m.name, x.Name, err)
						return
					}
					of.mu.Lock()
					of.cells[[2]string{m.name, x.Name}] = cmp.Or(x.cell, "exact")
					of.mu.Unlock()
				})
			}
			around, end := context.WithCancel(t.Context())
			var other sync.WaitGroup
			if m.around != nil {
				other.Go(func() { f.interfere(around, m.around) })
			}
			g.Wait()
			end()
			other.Wait()
			if *update {
				of.write(t, patterns, measures)
			}
		})
	}
	if !*update {
		of.check(t)
	}
}
