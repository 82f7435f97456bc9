package keylist_test

import (
	"bytes"
	"fmt"

	"github.com/psidecar/psidecar/proxy/codec/keylist"
	"github.com/psidecar/psidecar/proxy/pslite"
)

// Parameters that nobody has touched yet are 0.
func ExampleWordEncoder() {
	values := make([]float32, 256)
	values[7], values[100] = 0.5, 0.5
	body := pslite.AppendFloat32(nil, values)

	var encoder keylist.WordEncoder
	encoded, ok := encoder.Append(nil, body)
	fmt.Println(len(body), "bytes take", len(encoded), ok)

	var decoder keylist.WordDecoder
	decoded, rest, err := decoder.Decode(encoded)
	fmt.Println(bytes.Equal(decoded, body), len(rest), err)
	// Output:
	// 1024 bytes take 47 true
	// true 0 <nil>
}
