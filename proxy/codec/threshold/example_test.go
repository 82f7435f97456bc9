package threshold_test

import (
	"fmt"

	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/sparse"
	"github.com/psidecar/psidecar/proxy/codec/threshold"
	"github.com/psidecar/psidecar/proxy/pslite"
)

// Half of each gradient of four values waits, at a sparsity of three quarters: the
// value at the threshold goes. What waited of the first push is added to the second,
// and at the end the rest goes: nothing is lost.
func ExampleLayer_Compress() {
	config := threshold.DefaultConfig
	config.Sparsity, config.Lifespan = 0.75, 1
	layer, err := threshold.NewLayer(element.Float32, 4, config)
	if err != nil {
		fmt.Println(err)
		return
	}
	var w threshold.Workspace
	var sent sparse.Vector
	show := func() {
		full := make([]byte, 4*4)
		sent.Expand(full)
		var values []float64
		for i := range 4 {
			values = append(values, element.Float32.At(full, i))
		}
		fmt.Println(values)
	}
	for _, gradient := range [][]float32{{1, 8, 2, 3}, {1, 0, 2, 3}} {
		if err := layer.Compress(&w, &sent, pslite.AppendFloat32(nil, gradient)); err != nil {
			fmt.Println(err)
			return
		}
		show()
	}
	layer.Flush(&sent)
	show()
	// Output:
	// [0 8 0 3]
	// [0 0 4 3]
	// [2 0 0 0]
}
