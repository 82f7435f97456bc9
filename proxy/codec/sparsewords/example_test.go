package sparsewords_test

import (
	"bytes"
	"fmt"

	"github.com/psidecar/psidecar/proxy/codec/sparsewords"
	"github.com/psidecar/psidecar/proxy/pslite"
)

// The dense gradient of a table of which a step touched one row in a hundred.
func Example() {
	gradient := make([]float32, 64<<10)
	for i := range 16 {
		for row := 0; row < len(gradient); row += 1600 {
			gradient[row+i] = 1 / float32(row+i+1)
		}
	}
	body := pslite.AppendFloat32(nil, gradient)

	var encoder sparsewords.Encoder
	encoded, ok := encoder.Append(nil, body, 4)
	fmt.Println(len(body), "bytes take", len(encoded), ok)

	var decoder sparsewords.Decoder
	size, err := decoder.Open(encoded, 1<<20)
	if err != nil {
		fmt.Println(err)
		return
	}
	decoded := make([]byte, size)
	rest, err := decoder.Fill(decoded)
	fmt.Println(bytes.Equal(decoded, body), len(rest), err)
	// Output:
	// 262144 bytes take 2725 true
	// true 0 <nil>
}
