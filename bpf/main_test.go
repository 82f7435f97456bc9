package bpf

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/psidecar/psidecar/test/hoststest"
)

// The test binary is also the process that tests watch: with one of these
// variables it sends, receives, or attaches a capture, instead of testing.
const (
	senderVariable   = "PSIDECAR_BPF_SENDER"
	receiverVariable = "PSIDECAR_BPF_RECEIVER"
	attacherVariable = "PSIDECAR_BPF_ATTACHER"
)

func TestMain(m *testing.M) {
	if task := os.Getenv(senderVariable); task != "" {
		exit(send(task))
	}
	if address := os.Getenv(receiverVariable); address != "" {
		exit(receive(address))
	}
	if cgroup := os.Getenv(attacherVariable); cgroup != "" {
		exit(attachAndWait(cgroup))
	}
	goleak.VerifyTestMain(m)
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// send copies standard input to the address in the task, "ADDRESS SIZE", in
// writes, or TCP segments where SIZE is below 100, of that size, and waits
// until the receiver has read all of it.
func send(task string) error {
	address, text, _ := strings.Cut(task, " ")
	size, err := strconv.Atoi(text)
	if err != nil {
		return err
	}
	conn, err := net.DialTimeout("tcp", address, 10*time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	tcp := conn.(*net.TCPConn)
	if size < 100 {
		all, err := io.ReadAll(os.Stdin)
		if err != nil {
			return err
		}
		if err := hoststest.WriteSegments(tcp, all, size); err != nil {
			return err
		}
	} else if _, err := io.CopyBuffer(struct{ io.Writer }{tcp}, struct{ io.Reader }{os.Stdin}, make([]byte, size)); err != nil {
		return err
	}
	if err := tcp.CloseWrite(); err != nil {
		return err
	}
	if _, err := tcp.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		return fmt.Errorf("waiting for the receiver: %v", err)
	}
	return nil
}

// receive connects and reads all that comes.
func receive(address string) error {
	conn, err := net.DialTimeout("tcp", address, 10*time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = io.Copy(struct{ io.Writer }{io.Discard}, conn)
	return err
}

// attachAndWait attaches a capture, says so, and waits to be killed.
func attachAndWait(cgroup string) error {
	c, err := Open(Options{Ingress: IngressAll})
	if err != nil {
		return err
	}
	if err := c.Attach(cgroup); err != nil {
		return err
	}
	fmt.Println("attached")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}
