package recording_test

import (
	"bytes"
	"fmt"

	"github.com/psidecar/psidecar/internal/recording"
)

func Example() {
	var file bytes.Buffer
	w, err := recording.NewWriter(&file, recording.Header{Host: "host1"})
	if err != nil {
		fmt.Println(err)
		return
	}
	err = w.Add(&recording.Use{Job: "10.0.0.1:8000", Worker: "worker0", Server: "server0", UnixNanos: 1, Pull: true, Keys: []uint64{3, 5}})
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, err := w.Close(2, 0); err != nil {
		fmt.Println(err)
		return
	}

	header, totals, err := recording.Read(&file, func(u *recording.Use) error {
		fmt.Println(u.Job, u.Worker, u.Server, u.Keys)
		return nil
	})
	fmt.Println(header.Host, totals.Uses, err)
	// Output:
	// 10.0.0.1:8000 worker0 server0 [3 5]
	// host1 1 <nil>
}
