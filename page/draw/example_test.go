package draw_test

import (
	"fmt"

	"github.com/psidecar/psidecar/page/draw"
)

// Counts that lie close together are told apart.
func ExampleScaleOf() {
	s := draw.ScaleOf([][]uint64{{9058, 9070, 9088}})
	fmt.Println(s.Level(9058) < s.Level(9070), s.Level(9070) < s.Level(9088), s.Level(0))
	// Output:
	// true true 0
}
