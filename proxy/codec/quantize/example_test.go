package quantize_test

import (
	"fmt"

	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/quantize"
	"github.com/psidecar/psidecar/proxy/pslite"
)

// 512 numbers in 8 bits each, and a norm.
func ExampleConfig_Append() {
	values := make([]float32, 512)
	for i := range values {
		values[i] = float32(i) / 512
	}
	encoded, asIs := quantize.DefaultConfig.Append(nil, element.Float32, pslite.AppendFloat32(nil, values), 1)
	decoded, rest, err := quantize.Decode(nil, element.Float32, len(values), encoded)
	fmt.Println(4*len(values), "bytes take", len(encoded))
	fmt.Printf("%d as they are; the last is %.2f; %d bytes left, %v\n", asIs, element.Float32.At(decoded, 511), len(rest), err)
	// Output:
	// 2048 bytes take 519
	// 0 as they are; the last is 1.00; 0 bytes left, <nil>
}
