// This part cuts long loops into parts, between which they end when their
// context does: one over a hundred million edges takes seconds. The
// partitioners call it.

package partition

import (
	"context"
	"runtime"

	"golang.org/x/sync/errgroup"
)

// size is how many items a piece has. One of 50 edges each takes about 10 ms
// where every edge is read from memory.
const size = 1 << 14

// EachPiece calls work with one part of 0..n-1 after the other, in order. It returns
// ctx.Err() where ctx ends before the last.
func EachPiece(ctx context.Context, n int, work func(from, to int)) error {
	for from := 0; from < n; from += size {
		if err := ctx.Err(); err != nil {
			return err
		}
		work(from, min(from+size, n))
	}
	return nil
}

// LoopParts is how many parts [ShareLoop] makes of a loop.
func LoopParts() int { return runtime.GOMAXPROCS(0) }

// ShareLoop divides 0..n-1 into [LoopParts] runs of neighbours, about equally long, and calls
// work with one piece after the other of each, those of different parts at the same time.
// It returns ctx.Err() where ctx ends before the last.
func ShareLoop(ctx context.Context, n int, work func(part, from, to int)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	parts := LoopParts()
	var g errgroup.Group
	for part := range parts {
		first, last := n*part/parts, n*(part+1)/parts
		g.Go(func() error {
			return EachPiece(ctx, last-first, func(from, to int) { work(part, first+from, first+to) })
		})
	}
	return g.Wait()
}
