package sparse_test

import (
	"fmt"

	"github.com/psidecar/psidecar/proxy/codec/sparse"
)

// Ten positions of a thousand.
func ExampleAppendPositions() {
	mask := make(sparse.Mask, sparse.Words(1000))
	for i := range 10 {
		mask.Set(i * i * 10)
	}
	encoded := sparse.AppendPositions(nil, mask, 1000)

	decoded := make(sparse.Mask, sparse.Words(1000))
	count, rest, err := sparse.DecodePositions(encoded, decoded, 1000)
	fmt.Println(len(encoded), "bytes:", count, decoded.Has(810), decoded.Has(811), len(rest), err)
	// Output:
	// 13 bytes: 10 true false 0 <nil>
}
