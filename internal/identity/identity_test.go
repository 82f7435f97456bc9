package identity_test

import (
	"bytes"
	"crypto/tls"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/identity"
	"github.com/psidecar/psidecar/test/require"
)

func filesOf(f require.Files) identity.Files {
	return identity.Files{Cert: f.Cert, Key: f.Key, CA: f.CA}
}

// Files that are replaced are in use from the next look on, and files that cannot
// be read leave those before in use.
func TestFilesAreReadAgain(t *testing.T) {
	ca, folder := require.NewAuthority(t, "ca"), t.TempDir()
	files := filesOf(ca.Issue(t, folder, "first", time.Now().Add(time.Hour), require.CertificateParts...))
	i, err := identity.Load(files)
	if err != nil {
		t.Fatal(err)
	}
	first, _ := i.Current()
	ca.Issue(t, folder, "second", time.Now().Add(time.Hour), require.CertificateParts...)
	if same, _ := i.Current(); same != first {
		t.Error("files were looked at twice within a second")
	}
	look := func() []byte {
		i.LookAgain()
		cert, roots := i.Current()
		if roots == nil {
			t.Fatal("no roots")
		}
		return cert.Certificate[0]
	}
	second := look()
	if bytes.Equal(first.Certificate[0], second) {
		t.Fatal("the certificate that was replaced is still in use")
	}
	if err := os.WriteFile(files.Cert, []byte("half written"), 0o600); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(look(), second) {
		t.Error("another certificate is in use while the file is broken")
	}
	ca.Issue(t, folder, "third", time.Now().Add(time.Hour), require.CertificateParts...)
	if bytes.Equal(look(), second) {
		t.Error("the file that was mended is not in use")
	}
}

// While one caller waits for the files, the others get the previous content.
func TestOneCallerWaitsForTheFiles(t *testing.T) {
	files := filesOf(require.NewAuthority(t, "ca").Issue(t, t.TempDir(), "a", time.Now().Add(time.Hour)))
	i, err := identity.Load(files)
	if err != nil {
		t.Fatal(err)
	}
	first, _ := i.Current()
	pem, err := os.ReadFile(files.CA)
	if err != nil {
		t.Fatal(err)
	}
	// Whoever opens a pipe waits for the other end.
	if err := errors.Join(os.Remove(files.CA), syscall.Mkfifo(files.CA, 0o600)); err != nil {
		t.Fatal(err)
	}
	i.LookAgain()
	read := make(chan *tls.Certificate, 1)
	go func() {
		cert, _ := i.Current()
		read <- cert
	}()
	pipe, err := os.OpenFile(files.CA, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	i.LookAgain()
	if cert, _ := i.Current(); cert != first {
		t.Error("another certificate while the files are being read")
	}
	if _, err := pipe.Write(pem); err != nil {
		t.Error(err)
	}
	if err := pipe.Close(); err != nil {
		t.Error(err)
	}
	if cert := <-read; cert == first {
		t.Error("the files were not read")
	}
}

func TestLoadSaysWhatIsWrong(t *testing.T) {
	good := filesOf(require.NewAuthority(t, "ca").Issue(t, t.TempDir(), "a", time.Now().Add(time.Hour)))
	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for want, f := range map[string]identity.Files{
		"no such file":   {Cert: "/nowhere", Key: good.Key, CA: good.CA},
		"holds no certi": {Cert: good.Cert, Key: good.Key, CA: empty},
		"certificate":    {Cert: empty, Key: good.Key, CA: good.CA},
	} {
		if _, err := identity.Load(f); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
