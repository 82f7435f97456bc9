package pattern

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/psidecar/psidecar/cmd/psjob/van"
	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// Options say how the nodes of a job run.
type Options struct {
	// While is a file: workers make rounds for as long as it exists, and Rounds at least.
	While string
	// Pause is how long a round takes at least, which stands for computation.
	Pause time.Duration
	// Exact has workers check each pull: it may not lack what they or others had pushed by an earlier one.
	Exact bool
	// Again is how often all values are pulled at the end; the last pull counts.
	Again int
	// Rounds are made at least; 0: as the pattern has it.
	Rounds int
	// Out is the folder for what workers pull at the end, one file for each rank. Its first 8 bytes are the number of rounds.
	// Without it all workers make Rounds rounds, and compare what they pull with what is expected.
	Out string
}

// ErrLeft says that a worker is to end as if it had been killed; see [Pattern.Left].
var ErrLeft = errors.New("this worker leaves its place to another")

// Run runs the nodes of this process: as many as the pattern has together in one.
func (p *Pattern) Run(ctx context.Context, c van.Config, o Options) error {
	c.Dialect = p.Dialect
	nodes := map[pslite.Role]int{pslite.Server: p.ServersEach, pslite.Worker: p.WorkersEach, pslite.Scheduler: 1}[c.Role]
	g, ctx := errgroup.WithContext(ctx)
	for range nodes {
		g.Go(func() error { return p.node(ctx, c, o) })
	}
	return g.Wait()
}

// node is the life of one node.
func (p *Pattern) node(ctx context.Context, c van.Config, o Options) error {
	v, err := van.Start(ctx, c)
	if err != nil {
		return err
	}
	var work func(context.Context) error
	switch c.Role {
	case pslite.Server:
		err = p.serve(v)
	case pslite.Worker:
		var w *worker
		if w, err = p.newWorker(v, o); err == nil {
			work = w.work
		}
	}
	if err == nil && !v.Recovered() {
		err = v.Barrier(ctx, van.Everyone)
	}
	if err == nil && work != nil {
		err = work(ctx)
	}
	if errors.Is(err, ErrLeft) {
		return err
	}
	if err == nil {
		err = v.AwaitEnd(ctx)
	}
	if stopped := v.Stop(ctx); stopped != nil {
		return stopped
	}
	return err
}

// apps are the pattern's apps.
func (p *Pattern) apps() (all []int32) {
	for _, k := range p.Keys {
		if !slices.Contains(all, k.App) {
			all = append(all, k.App)
		}
	}
	return all
}

// Ended is what a worker has at the end.
type Ended struct {
	Rounds int
	Values [][]byte // of all keys; zeros of those that it does not use
}

// Read reads what all workers wrote to Options.Out.
func (p *Pattern) Read(dir string) (all []Ended, err error) {
	for rank := range p.Workers {
		b, err := os.ReadFile(filepath.Join(dir, strconv.Itoa(rank)))
		if err != nil {
			return nil, err
		}
		e := Ended{Rounds: int(binary.LittleEndian.Uint64(b))}
		b = b[8:]
		for i := range p.Keys {
			e.Values = append(e.Values, b[:p.Keys[i].Pulled()])
			b = b[p.Keys[i].Pulled():]
		}
		all = append(all, e)
	}
	return all, nil
}

// Uses reports whether a worker uses a key.
func (p *Pattern) Uses(rank, key int) bool { return p.mine(rank, key) }
