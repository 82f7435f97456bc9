package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"aead.dev/minisign"
)

// writeSums writes SHA256SUMS of the files of a folder, as sha256sum -c reads it, and returns
// their names. The folder has no folders in it.
func writeSums(dir string) ([]string, error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	var sums strings.Builder
	for _, f := range files { // sorted by name
		sum, err := sumOf(filepath.Join(dir, f.Name()))
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&sums, "%x  %s\n", sum, f.Name())
		names = append(names, f.Name())
	}
	return names, os.WriteFile(filepath.Join(dir, "SHA256SUMS"), []byte(sums.String()), 0o644)
}

// sumOf returns the SHA-256 of a file.
func sumOf(path string) (sum []byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return h.Sum(nil), nil
}

// signer reads a secret key and returns a function that signs a file, with the signature beside
// it and a comment that is signed too. Without a key it returns nil.
func signer(keyFile, password string) (func(path, comment string) error, error) {
	if keyFile == "" {
		return nil, nil
	}
	text, err := os.ReadFile(keyFile)
	if err != nil {
		return nil, fmt.Errorf("--key: %w", err)
	}
	var key minisign.PrivateKey
	if minisign.IsEncrypted(text) {
		if password == "" {
			return nil, fmt.Errorf("--key %s has a password: set MINISIGN_PASSWORD", keyFile)
		}
		key, err = minisign.DecryptKey(password, text)
	} else {
		err = key.UnmarshalText(text)
	}
	if err != nil {
		return nil, fmt.Errorf("--key %s: no secret key of minisign, or a wrong password: %w", keyFile, err)
	}
	return func(path, comment string) error {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		// The library's own comment has the time, which would make two runs differ.
		signature := minisign.SignWithComments(key, text, comment, "signature of "+filepath.Base(path))
		return os.WriteFile(path+".minisig", signature, 0o644)
	}, nil
}
