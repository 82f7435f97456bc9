package dataset

import (
	"context"
	"fmt"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"
)

// HashDataset returns a copy of a data set with its rows hashed, on all cores. Labels and line
// numbers stay; every value is 1. The result does not depend on the number of cores.
func HashDataset(ctx context.Context, rows *Rows, o HashOptions) (*Rows, error) {
	h, err := NewHasher(o)
	if err != nil {
		return nil, err
	}
	// Each core hashes consecutive rows into a list of its own; the lists are then joined in order.
	parts := make([]Rows, runtime.GOMAXPROCS(0))
	group, ctx := errgroup.WithContext(ctx)
	for i := range parts {
		from, to := i*rows.Len()/len(parts), (i+1)*rows.Len()/len(parts)
		group.Go(func() error { return hashPart(ctx, h.Clone(), &parts[i], rows, from, to) })
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	hashed := &Rows{Line: slices.Clone(rows.Line), Label: slices.Clone(rows.Label), Start: []int{0}}
	for i := range parts {
		base := len(hashed.ID)
		for _, end := range parts[i].Start {
			hashed.Start = append(hashed.Start, base+end)
		}
		hashed.ID = append(hashed.ID, parts[i].ID...)
		// The part is in the joined list now; its memory is released before the next one is copied.
		parts[i] = Rows{}
	}
	hashed.Value = make([]float32, len(hashed.ID))
	for i := range hashed.Value {
		hashed.Value[i] = 1
	}
	return hashed, nil
}

// hashPart hashes rows from to to-1 into part: the ids, and in Start the ends of the rows.
func hashPart(ctx context.Context, h *Hasher, part, rows *Rows, from, to int) error {
	part.ID = make([]uint64, 0, (to-from)*h.options.Bins)
	for r := from; r < to; r++ {
		if r%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		ids, values := rows.Features(r)
		var err error
		if part.ID, err = h.Append(part.ID, ids, values); err != nil {
			return fmt.Errorf("line %d: %w", rows.Line[r], err)
		}
		part.Start = append(part.Start, len(part.ID))
	}
	return nil
}
