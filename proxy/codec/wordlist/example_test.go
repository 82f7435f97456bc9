package wordlist_test

import (
	"bytes"
	"fmt"

	"github.com/psidecar/psidecar/proxy/codec/wordlist"
	"github.com/psidecar/psidecar/proxy/pslite"
)

// Parameters that nobody has touched yet are 0.
func Example() {
	values := make([]float32, 256)
	values[7], values[100] = 0.5, 0.5
	body := pslite.AppendFloat32(nil, values)

	var encoder wordlist.Encoder
	encoded, ok := encoder.Append(nil, body)
	fmt.Println(len(body), "bytes take", len(encoded), ok)

	var decoder wordlist.Decoder
	decoded, rest, err := decoder.Decode(encoded)
	fmt.Println(bytes.Equal(decoded, body), len(rest), err)
	// Output:
	// 1024 bytes take 47 true
	// true 0 <nil>
}
