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
	"github.com/psidecar/psidecar/test/certs"
	"github.com/psidecar/psidecar/test/require"
)

func filesOf(f certs.Files) identity.Files {
	return identity.Files{Cert: f.Cert, Key: f.Key, CA: f.CA}
}

// Files that are replaced are in use from the next look on, and files that cannot
// be read leave those before in use.
func TestFilesAreReadAgain(t *testing.T) {
	ca, folder := certs.NewAuthority(t, "ca"), t.TempDir()
	files := filesOf(ca.Issue(t, folder, "first", time.Now().Add(time.Hour), certs.Parts...))
	i := require.Value(identity.Load(files))(t)
	first, _ := i.Current()
	ca.Issue(t, folder, "second", time.Now().Add(time.Hour), certs.Parts...)
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
	require.NoError(t, os.WriteFile(files.Cert, []byte("half written"), 0o600))
	if !bytes.Equal(look(), second) {
		t.Error("another certificate is in use while the file is broken")
	}
	until := time.Now().Add(2 * time.Hour)
	ca.Issue(t, folder, "third", until, certs.Parts...)
	if bytes.Equal(look(), second) {
		t.Error("the file that was mended is not in use")
	}
	if at := i.Expires(); at.Unix() != until.Unix() {
		t.Errorf("it expires at %v, want %v", at, until)
	}
}

// While one caller waits for the files, the others get the previous content.
func TestOneCallerWaitsForTheFiles(t *testing.T) {
	files := filesOf(certs.NewAuthority(t, "ca").Issue(t, t.TempDir(), "a", time.Now().Add(time.Hour)))
	i := require.Value(identity.Load(files))(t)
	first, _ := i.Current()
	pem := require.Value(os.ReadFile(files.CA))(t)
	// Whoever opens a pipe waits for the other end.
	require.NoError(t, errors.Join(os.Remove(files.CA), syscall.Mkfifo(files.CA, 0o600)))
	i.LookAgain()
	read := make(chan *tls.Certificate, 1)
	go func() {
		cert, _ := i.Current()
		read <- cert
	}()
	pipe := require.Value(os.OpenFile(files.CA, os.O_WRONLY, 0))(t)
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
	good := filesOf(certs.NewAuthority(t, "ca").Issue(t, t.TempDir(), "a", time.Now().Add(time.Hour)))
	empty := filepath.Join(t.TempDir(), "empty.pem")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
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
