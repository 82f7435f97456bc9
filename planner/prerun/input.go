package prerun

import (
	"context"
	"fmt"
	"runtime"

	"golang.org/x/sync/errgroup"

	"github.com/psidecar/psidecar/planner/dataset"
	"github.com/psidecar/psidecar/planner/graph"
)

// An Input is training data to be partitioned: a file, or the hashed form of it.
type Input struct {
	Path string
	// Hash, if not nil, hashes each row (DW23 section 4). The graph and the shards are then those
	// of the hashed rows.
	Hash     *dataset.HashOptions
	Progress func(done float64) // of reading; may be nil
}

// Graph reads the input and builds its graph. The peak memory is that of [graph.Builder].
func (in Input) Graph(ctx context.Context) (*graph.Graph, error) {
	var b graph.Builder
	err := in.readRows(ctx, func(rows *dataset.Rows, hashed [][]uint64) error {
		if hashed == nil {
			return b.Add(rows)
		}
		for _, row := range hashed {
			b.AddRow(row)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	g, err := b.Build(ctx)
	if err != nil {
		return nil, fmt.Errorf("building the graph of %s: %w", in.Path, err)
	}
	if g.Edges() == 0 {
		return nil, fmt.Errorf("%s: no row has a feature: is it libsvm text?", in.Path)
	}
	return g, nil
}

// readRows calls each with batches of rows and, if the input is hashed, the ids of the hashed rows;
// hashed is nil otherwise. Both are valid until each returns.
func (in Input) readRows(ctx context.Context, each func(rows *dataset.Rows, hashed [][]uint64) error) error {
	o := dataset.Options{Progress: in.Progress}
	if in.Hash == nil {
		return dataset.ReadFile(ctx, in.Path, o, func(rows *dataset.Rows) error { return each(rows, nil) })
	}
	h, err := dataset.NewHasher(*in.Hash)
	if err != nil {
		return err
	}
	crew := []*dataset.Hasher{h}
	// Hashing costs more than parsing, so each batch is hashed on all cores.
	for len(crew) < runtime.GOMAXPROCS(0) {
		crew = append(crew, h.Clone())
	}
	return dataset.ReadFile(ctx, in.Path, o, func(rows *dataset.Rows) error {
		hashed, err := hashRows(crew, rows)
		if err != nil {
			return fmt.Errorf("%s, %w", in.Path, err)
		}
		return each(rows, hashed)
	})
}

// hashRows hashes a batch in parallel, each hasher a contiguous part of it. A hasher has scratch
// memory of its own and is used by one goroutine at a time. The error, if any, is of one of the
// lines that cannot be hashed, not necessarily the first.
func hashRows(crew []*dataset.Hasher, rows *dataset.Rows) ([][]uint64, error) {
	hashed := make([][]uint64, rows.Len())
	var group errgroup.Group
	for i, h := range crew {
		group.Go(func() error {
			for r := i * len(hashed) / len(crew); r < (i+1)*len(hashed)/len(crew); r++ {
				ids, values := rows.Features(r)
				var err error
				if hashed[r], err = h.Append(nil, ids, values); err != nil {
					return fmt.Errorf("line %d: %w", rows.Line[r], err)
				}
			}
			return nil
		})
	}
	return hashed, group.Wait()
}
