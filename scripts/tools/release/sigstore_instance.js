// Run a certificate authority (Fulcio) and a transparency log (Rekor) of Sigstore's test package @sigstore/mock on a port
// of 127.0.0.1, with keys made at the start. Prints the trust configuration of clients as a line of JSON, and serves until
// its standard input ends.

const crypto = require("node:crypto");
const http = require("node:http");
const mock = require("@sigstore/mock");

const newKey = () => crypto.generateKeyPairSync("ec", { namedCurve: "prime256v1" });
const sha256 = (bytes) => crypto.createHash("sha256").update(bytes);
const hashOf = (bytes) => ({ algorithm: "sha256", value: sha256(bytes).digest("hex") });

// Return the entry that Rekor logs for a proposed one. The package would log the proposal itself.
function entryOf({ apiVersion, kind, spec }) {
  const { envelope, verifiers } = spec.proposedContent;
  const { payload, signatures } = JSON.parse(envelope);
  const logged = {
    envelopeHash: hashOf(envelope),
    payloadHash: hashOf(Buffer.from(payload, "base64")),
    signatures: signatures.map(({ sig }, index) => ({ signature: sig, verifier: verifiers[index] })),
  };
  return { apiVersion, kind, spec: logged };
}

async function main() {
  const server = http.createServer();
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const url = `http://127.0.0.1:${server.address().port}`;

  const validFor = { start: new Date() };
  const ctLog = await mock.initializeCTLog(newKey());
  const authority = await mock.initializeCA(newKey(), ctLog);
  const log = await mock.initializeTLog(url, newKey());
  const fulcio = mock.fulcioHandler(authority);
  const rekor = mock.rekorHandler({ log: (proposed) => log.log(entryOf(proposed)) });

  server.on("request", async (request, response) => {
    const body = JSON.parse(Buffer.concat(await request.toArray()));
    let answer;
    if (request.url === fulcio.path) {
      // sigstore-python sends the token in a header; the package expects it in the body.
      const oidcIdentityToken = request.headers.authorization.replace("Bearer ", "");
      const certificateSigningRequest = Buffer.from(body.certificateSigningRequest, "base64").toString();
      answer = await fulcio.fn(JSON.stringify({ credentials: { oidcIdentityToken }, certificateSigningRequest }));
    } else {
      answer = await rekor.fn(JSON.stringify(body));
    }
    response.writeHead(answer.statusCode, { "Content-Type": "application/json" }).end(answer.response);
  });

  const service = { url, majorApiVersion: 1, validFor, operator: "rehearsal" };
  const trusted = (key) => ({
    baseUrl: url,
    hashAlgorithm: "SHA2_256",
    publicKey: { rawBytes: key.toString("base64"), keyDetails: "PKIX_ECDSA_P256_SHA_256", validFor },
    logId: { keyId: sha256(key).digest("base64") },
  });
  const certificates = [{ rawBytes: authority.rootCertificate.toString("base64") }];
  const subject = { commonName: "sigstore", organization: "sigstore.mock" }; // the package's
  const configuration = {
    mediaType: "application/vnd.dev.sigstore.clienttrustconfig.v0.1+json",
    trustedRoot: {
      mediaType: "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
      certificateAuthorities: [{ uri: url, subject, certChain: { certificates }, validFor }],
      tlogs: [trusted(log.publicKey)],
      ctlogs: [trusted(ctLog.publicKey)],
    },
    signingConfig: {
      mediaType: "application/vnd.dev.sigstore.signingconfig.v0.2+json",
      caUrls: [service],
      rekorTlogUrls: [service],
      rekorTlogConfig: { selector: "ANY" },
    },
  };
  console.log(JSON.stringify(configuration));
  process.stdin.resume().on("end", () => process.exit());
}

main();
