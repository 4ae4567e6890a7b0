// SPDX-License-Identifier: Apache-2.0
// A provider of OpenID Connect for tests: node-oidc-provider with a few people, and forms that take any password.
// Arguments: its port, the address that it sends people back to, and where claims are: id_token or userinfo.
import Provider from 'oidc-provider';

const [port, redirect, claimsIn] = process.argv.slice(2);
const people = {
  writer: { email: 'writer@example.com', email_verified: true, groups: ['platform', 'others'] },
  reader: { email: 'reader@example.com', email_verified: true, groups: ['analysts'] },
  stranger: { email: 'stranger@example.com', email_verified: true, groups: ['others'] },
  unproved: { email: 'writer@example.com', email_verified: false, groups: ['analysts'] },
};
const client = {
  client_secret: 'a secret of the client alone',
  redirect_uris: [redirect],
  grant_types: ['authorization_code'],
  response_types: ['code'],
};

const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [{ client_id: 'lakefold', ...client }, { client_id: 'another', ...client }],
  claims: { openid: ['sub'], email: ['email', 'email_verified'], groups: ['groups'] },
  scopes: ['openid', 'email', 'groups'],
  pkce: { required: () => true },
  conformIdTokenClaims: claimsIn !== 'id_token',
  features: { devInteractions: { enabled: true } },
  cookies: { keys: ['only for tests'] },
  findAccount: async (_, id) => (id in people ? { accountId: id, claims: async () => ({ sub: id, ...people[id] }) } : undefined),
});
provider.listen(Number(port), '127.0.0.1', () => console.log('listening'));
