// Package pieces cuts long loops into parts, between which they end when their
// context does: one over a hundred million edges takes seconds. The
// partitioners call it.
package pieces

import "context"

// size is how many items a piece has. One of 50 edges each takes about 10 ms
// where every edge is read from memory.
const size = 1 << 14

// Do calls work with one part of 0..n-1 after the other, in order. It returns
// ctx.Err() where ctx ends before the last.
func Do(ctx context.Context, n int, work func(from, to int)) error {
	for from := 0; from < n; from += size {
		if err := ctx.Err(); err != nil {
			return err
		}
		work(from, min(from+size, n))
	}
	return nil
}
