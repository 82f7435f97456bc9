// This file divides long loops into pieces, between which they check their context: a loop over a
// hundred million edges takes seconds.

package partition

import (
	"context"
	"runtime"

	"golang.org/x/sync/errgroup"
)

// size is how many items a piece has. With 50 edges each, every one read from memory, a piece takes
// about 10 ms.
const size = 1 << 14

// EachPiece calls work for one piece of 0..n-1 after the other, in order. It returns ctx.Err() if
// ctx ends before the last piece.
func EachPiece(ctx context.Context, n int, work func(from, to int)) error {
	for from := 0; from < n; from += size {
		if err := ctx.Err(); err != nil {
			return err
		}
		work(from, min(from+size, n))
	}
	return nil
}

// LoopParts is the number of parts into which [ShareLoop] divides a loop.
func LoopParts() int { return runtime.GOMAXPROCS(0) }

// ShareLoop divides 0..n-1 into [LoopParts] ranges of about the same length, one for each
// goroutine, and calls work for one piece of a range after the other. part is the number of the
// range, so that work can use memory of its own per part. It returns ctx.Err() if ctx ends before
// the last piece.
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
